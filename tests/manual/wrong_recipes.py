"""Wrong recipes of a small model, and what to do about each: the advice that its error has to give.

A line is `ranks: wrong words -> advice`. Words without a dot are keys of the section that heads the lines. Of an advice
`key=value` sets a key, `-key` leaves it out, `ranks=N` starts others; ` or ` stands between ways out, each of which has
to work alone, and ` & ` before words that an error need not name but which that way out needs too."""

BASE = ("model.layers=4 model.width=32 model.heads=4 model.context=32 model.vocabulary=300 train.global_batch=8 "
        "train.steps=1 train.eval_batches=1 data.tokenizer=bytes sample.tokens=0 optimizer.warmup_steps=0")

TABLE_OF_3 = "rank 0: F0.0 B0.0\nrank 1: F1.0 B1.0\nrank 2: F2.0 B2.0\n"  # table_of_3.txt
EMPTY = "empty.txt"

WRONG = {
    "data_parallel": """
2: technique=zer3 -> technique=zero3
2: technique=ZeRO-2 -> technique=zero2
2: technique=zero -> technique=zero1
2: technique=hspd -> technique=hsdp & shard=2 ranks=4
2: technique=paramserver -> technique=param_server
2: technique=parameter_server -> technique=param_server
2: technique=replica -> technique=replicas & comm.backend=thread
2: technique=dpp -> technique=ddp
2: technique='' -> technique=ddp
2: technique=3 -> technique=ddp
2: technique=true -> technique=ddp
2: technique=['ddp'] -> technique=ddp
2: bucket_bytes=0 -> bucket_bytes=1
2: bucket_bytes='25M' -> bucket_bytes=26214400
2: bucket_bytes=1e6 -> bucket_bytes=26214400
2: units=['blocks.*.mlp'] -> technique=zero1 or technique=hsdp & shard=2 ranks=4 or -units
2: technique=zero3 units=3 -> units=[]
2: technique=zero3 units=[''] -> units=[]
2: technique=zero3 units=['blocks.9.mlp'] -> units=['blocks.0.mlp']
2: technique=zero3 units=['blocks.*.mpl'] -> units=['blocks.*.mlp']
2: prefetch=1 -> technique=zero3 or -prefetch
2: technique=zero3 prefetch=3 -> prefetch=2
2: technique=zero3 prefetch=-1 -> prefetch=0
2: technique=zero3 prefetch=1.5 -> prefetch=1
2: technique=zero1 prefetch=two -> prefetch=1
2: share=off -> technique=zero1 or -share
2: technique=zero2 share=yes -> share=auto
2: technique=zero2 share=true -> share=auto
2: technique=replicas comm.backend=thread share=on -> technique=zero3 or -share
2: technique=zero3 share=on comm.backend=gloo -> comm.backend=shm
2: accumulate=full -> technique=zero2 or -accumulate
2: technique=zero1 accumulate=full -> technique=zero2 or -accumulate
2: technique=zero2 accumulate=shard -> accumulate=sharded
2: technique=zero2 accumulate=1 -> accumulate=sharded
2: reshard_after_forward=false -> technique=zero3 or -reshard_after_forward
2: technique=zero2 reshard_after_forward=true -> technique=zero3 or -reshard_after_forward
2: technique=param_server reshard_after_forward=true -> technique=zero3 or -reshard_after_forward
2: technique=zero3 reshard_after_forward=1 -> reshard_after_forward=true
2: technique=zero3 reshard_after_forward=no -> reshard_after_forward=true
4: shard=2 -> technique=hsdp or -shard
4: technique=zero3 shard=2 -> technique=hsdp or -shard
4: technique=hsdp -> shard=2
4: technique=hsdp shard=3 -> shard=2
4: technique=hsdp shard=4 -> shard=2
4: technique=hsdp shard=1 -> shard=2
4: technique=hsdp shard=-2 -> shard=2
4: technique=hsdp shard=2.0 -> shard=2
2: technique=hsdp -> technique=zero3
3: technique=hsdp shard=2 train.global_batch=12 -> technique=zero3 -shard
6: technique=hsdp shard=4 train.global_batch=12 -> shard=2 or shard=3
2: servers=1 -> technique=param_server or -servers
2: technique=param_server servers=0 -> servers=1
2: technique=param_server servers=3 -> servers=2 or servers=all
2: technique=param_server servers=some -> servers=all
2: technique=param_server servers=1.5 -> servers=all
2: mode=async -> technique=param_server or -mode
2: technique=zero3 mode=sync -> technique=param_server or -mode
2: technique=param_server mode=asynch -> mode=async
2: technique=param_server mode=true -> mode=sync
2: staleness=1 -> technique=param_server & mode=bounded
2: technique=param_server staleness=1 -> mode=bounded or -staleness
2: technique=param_server mode=async staleness=1 -> mode=bounded or -staleness
2: technique=param_server mode=bounded staleness=-1 -> staleness=0
2: technique=param_server mode=bounded staleness=some -> staleness=1
2: drain=10 -> technique=param_server & mode=async
2: technique=param_server drain=10 -> mode=async or mode=bounded or -drain
2: technique=param_server mode=async drain=0 -> drain=1
2: technique=param_server mode=async drain='never' -> drain=50
2: technique=param_server mode=async prefetch=1 -> mode=sync or -prefetch
2: technique=param_server mode=bounded share=on -> mode=sync or -share
2: technique=param_server mode=async accumulate=full -> mode=sync or -accumulate
4: technique=param_server mode=async mesh.tp=2 -> mode=sync or mesh.tp=1
4: technique=param_server mode=bounded mesh.cp=2 -> mode=sync or mesh.cp=1
4: technique=param_server mode=async mesh.pp=2 -> mode=sync or mesh.pp=1
4: technique=param_server mode=async mesh.ep=2 moe.experts=4 -> mode=sync or mesh.ep=1
2: technique=param_server mode=async precision.compute=fp16 -> mode=sync or precision.compute=bf16
2: technique=param_server mode=async precision.gradients=bf16 -> mode=sync or precision.gradients=fp32
2: technique=param_server mode=async precision.reduce=bf16 -> mode=sync or precision.reduce=fp32
2: technique=param_server mode=async data.streaming=true -> mode=bounded or data.streaming=false
2: technique=param_server mode=async moe.experts=4 moe.balance=batch -> mode=sync or moe.balance=sequence
2: technique=param_server mode=async hook=topk -> technique=ddp & -mode or hook=none
2: technique=replicas -> comm.backend=thread
2: technique=replicas comm.backend=shm -> comm.backend=thread or technique=ddp or technique=zero1
4: technique=replicas comm.backend=thread mesh.tp=2 -> mesh.tp=1 or technique=ddp or technique=zero1
4: technique=replicas comm.backend=thread mesh.pp=2 -> mesh.pp=1 or technique=ddp or technique=zero1
4: technique=replicas comm.backend=thread mesh.cp=2 -> mesh.cp=1 or technique=ddp or technique=zero1
2: technique=replicas comm.backend=thread reshard_after_forward=true -> technique=zero3 or -reshard_after_forward
2: tecnique=ddp -> -tecnique technique=ddp
2: technique=zero3 unit=['blocks.*.mlp'] -> -unit units=['blocks.*.mlp']
2: technique=zero3 depth=2 -> -depth tensor_parallel.depth=2 & tensor_parallel.kind=2.5d mesh.tp=8 ranks=8
""",
    "data_parallel (hook)": """
2: hook=powersdg -> hook=powersgd
2: hook=power -> hook=powersgd
2: hook=top_k -> hook=topk
2: hook=PowerSGD -> hook=powersgd
2: hook=bf16 -> -hook precision.reduce=bf16
2: hook=fp16 -> -hook precision.reduce=fp16
2: hook=false -> hook=none
2: hook_rank=4 -> hook=powersgd or -hook_rank
2: hook=topk hook_rank=4 -> hook=powersgd or -hook_rank
2: hook=powersgd hook_rank=0 -> hook_rank=1
2: hook=powersgd hook_rank=4.0 -> hook_rank=4
2: hook=powersgd hook_rank=100000 -> hook_rank=65536
2: hook_fraction=0.1 -> hook=topk or -hook_fraction
2: hook=powersgd hook_fraction=0.1 -> hook=topk or -hook_fraction
2: hook=topk hook_fraction=0 -> hook_fraction=1e-06
2: hook=topk hook_fraction=1.5 -> hook_fraction=1
2: hook=topk hook_fraction=all -> hook_fraction=0.01
2: technique=zero3 hook=powersgd -> technique=ddp or technique=hsdp & shard=2 ranks=4
2: technique=zero1 hook=topk -> technique=ddp or hook=none
2: technique=param_server hook=topk -> technique=ddp or hook=none
2: technique=replicas comm.backend=thread hook=topk -> technique=ddp or hook=none
2: hook=powersgd precision.compute=fp16 -> precision.compute=bf16 or hook=none
2: hook=topk precision.gradients=bf16 -> precision.gradients=fp32 or hook=none
2: hook=topk precision.reduce=fp16 -> precision.reduce=fp32 or hook=none
4: technique=hsdp shard=2 hook=powersgd precision.reduce=bf16 -> precision.reduce=fp32 or hook=none
""",
    "tensor_parallel": """
4: mesh.tp=4 kind=25d -> kind=2.5d & depth=1
4: mesh.tp=4 kind=2.5D -> kind=2.5d & depth=1
2: mesh.tp=2 kind=1D -> kind=1d
4: mesh.tp=4 kind=4d -> kind=1d or kind=2d
4: mesh.tp=4 kind=2 -> kind=1d
4: mesh.tp=4 kind=2.5 -> kind=1d
2: mesh.tp=2 kind=megatron -> kind=1d
2: kind=1d -> -kind or mesh.tp=2
2: sequence=true -> -sequence or mesh.tp=2
2: depth=2 -> -depth
2: mesh.tp=2 sequence=1 -> sequence=true
2: mesh.tp=2 sequence=yes -> sequence=true
2: mesh.tp=2 depth=2 -> -depth
4: mesh.tp=4 kind=2d depth=1 -> -depth or kind=2.5d
4: mesh.tp=4 kind=2d sequence=true -> -sequence or kind=1d
8: mesh.tp=8 kind=3d sequence=false -> -sequence
4: mesh.tp=4 kind=2.5d depth=0 -> depth=1
8: mesh.tp=8 kind=2.5d depth=two -> depth=2
4: mesh.tp=4 kind=2.5d depth=4 -> depth=1
4: mesh.tp=4 kind=2.5d depth=3 -> mesh.tp=12 & ranks=12 train.global_batch=12
4: mesh.tp=4 kind=2.5d -> mesh.tp=8 & ranks=8
3: mesh.tp=3 kind=2d -> mesh.tp=4 & ranks=4
2: mesh.tp=2 kind=2d -> mesh.tp=4 & ranks=4
4: mesh.tp=4 kind=3d -> mesh.tp=8 & ranks=8
9: mesh.tp=9 kind=2d -> mesh.tp=4 & ranks=4
4: mesh.tp=4 kind=2d model.kind=llama model.kv_heads=1 -> -model.kv_heads
4: mesh.tp=4 kind=2d moe.experts=4 -> kind=1d
8: mesh.tp=8 kind=3d lora.rank=2 -> lora.rank=4
4: mesh.tp=4 kind=2d lora.rank=4 lora.dora=true -> kind=1d or lora.dora=false
4: mesh.tp=4 kind=2d lora.rank=3 -> lora.rank=2 or lora.rank=4
4: mesh.tp=4 kind=2d train.global_batch=3 -> train.global_batch=4
4: mesh.tp=4 kind=2d train.micro_batch=1 -> train.micro_batch=2
8: mesh.tp=8 kind=3d train.global_batch=6 -> train.global_batch=8
8: mesh.tp=8 kind=3d model.hidden=66 -> model.hidden=64
3: mesh.tp=3 -> mesh.tp=2 & ranks=2
2: mesh.tp=2 sequence=true model.context=31 -> model.context=32
2: mesh.tp=2 kinds=1d -> -kinds kind=1d
2: mesh.tp=2 technique=1d -> -technique & data_parallel.technique=ddp
2: mesh.tp=2 moe.experts=3 -> moe.experts=4
""",
    "context_parallel": """
2: mesh.cp=2 kind=rign -> kind=ring
2: mesh.cp=2 kind=ulyses -> kind=ulysses
2: mesh.cp=2 kind=Ring -> kind=ring
2: mesh.cp=2 kind=zigzag -> kind=ring
2: mesh.cp=2 kind=true -> kind=ring
2: kind=ring -> -kind or mesh.cp=2
2: exchange=2 -> -exchange
2: mesh.cp=2 exchange=2 -> -exchange
4: mesh.cp=4 kind=ulysses exchange=2 -> -exchange or kind=both
4: mesh.cp=4 kind=both -> exchange=2
4: mesh.cp=4 kind=both exchange=3 -> exchange=2
4: mesh.cp=4 kind=both exchange=4 -> exchange=2
4: mesh.cp=4 kind=both exchange=1 -> exchange=2
4: mesh.cp=4 kind=both exchange=-1 -> exchange=2
4: mesh.cp=4 kind=both exchange=2.0 -> exchange=2
4: mesh.cp=4 kind=both exchange=half -> exchange=2
2: mesh.cp=2 kind=both -> kind=ring or kind=ulysses
3: mesh.cp=3 kind=both exchange=2 model.context=36 -> kind=ring -exchange
6: mesh.cp=6 kind=both exchange=3 model.context=36 -> exchange=2
3: mesh.cp=3 kind=ulysses model.context=36 -> kind=ring or mesh.cp=2 & ranks=2
8: mesh.cp=4 mesh.tp=2 kind=ulysses -> kind=ring or mesh.cp=2
2: mesh.cp=2 model.context=31 -> model.context=32
2: mesh.cp=2 model.context=34 -> model.context=36
2: mesh.cp=2 kind=ulysses model.context=31 -> model.context=32
4: mesh.cp=4 kind=both exchange=2 model.context=36 -> model.context=40
4: mesh.cp=2 mesh.tp=2 tensor_parallel.sequence=true model.context=34 -> model.context=36
2: mesh.cp=2 schedule=ring -> -schedule kind=ring
""",
    "moe": """
2: mesh.ep=2 -> moe.experts=4 or mesh.ep=1
3: mesh.ep=3 experts=4 train.global_batch=12 -> mesh.ep=2 & ranks=2
8: mesh.ep=8 experts=4 -> mesh.ep=2 or mesh.ep=4
4: mesh.ep=2 mesh.tp=2 experts=2 -> experts=4
2: mesh.ep=2 experts=4 train.global_batch=3 -> train.global_batch=4
2: mesh.ep=2 experts=4 train.micro_batch=1 -> train.micro_batch=2
2: experts=4 top_k=5 -> top_k=4
2: experts=4 top_k=0 -> top_k=1
2: experts=-1 -> experts=0
2: experts=4 gates=sigmoidal -> gates=sigmoid
2: experts=4 balance=batches -> balance=batch
2: experts=4 balance=batch capacity=1.0 -> balance=sequence or capacity=0
2: experts=4 balance=batch balance_loss=0 -> -balance
2: experts=4 shared_gate=true -> shared=16
2: top_k=2 -> -top_k or experts=4
2: balance=batch -> -balance or experts=4
2: experts=4 capacity=-1 -> capacity=0
2: experts=4 normalize=1 -> normalize=true
4: mesh.pp=2 experts=4 balance=batch pipeline.schedule=pipedream optimizer.clip_norm=0 model.tie_embeddings=false \
-> balance=sequence or pipeline.schedule=1f1b
""",
    "pipeline": """
2: mesh.pp=2 schedule=1F1B -> schedule=1f1b
2: mesh.pp=2 schedule=1f1b1 -> schedule=1f1b
2: mesh.pp=2 schedule=zbv -> schedule=zb-v
2: mesh.pp=2 schedule=zb_h1 -> schedule=zb-h1
2: mesh.pp=2 schedule=interleave -> schedule=interleaved
2: mesh.pp=2 schedule=gpip -> schedule=gpipe
2: mesh.pp=2 schedule=pipedream2bw -> schedule=pipedream-2bw & optimizer.clip_norm=0 model.tie_embeddings=false
2: mesh.pp=2 schedule=1 -> schedule=1f1b
2: mesh.pp=2 schedule=none.txt -> schedule=naive
2: mesh.pp=2 schedule=empty.txt -> schedule=1f1b
2: mesh.pp=2 schedule=table_of_3.txt -> mesh.pp=3 & ranks=3 train.micro_batch=0
3: mesh.pp=3 schedule=table_of_3.txt micro_batches=2 -> micro_batches=1
3: mesh.pp=3 schedule=table_of_3.txt stages_per_rank=2 -> -stages_per_rank
2: schedule=gpipe -> -schedule or mesh.pp=2
2: micro_batches=2 -> -micro_batches or mesh.pp=2
2: stages_per_rank=2 -> -stages_per_rank
2: cut=layers -> -cut or mesh.pp=2
2: drain=2 -> -drain
2: mesh.pp=2 drain=2 -> -drain
2: mesh.pp=2 micro_batches=0 -> micro_batches=1
2: mesh.pp=2 micro_batches=many -> micro_batches=auto
2: mesh.pp=2 micro_batches=2.0 -> micro_batches=auto
2: mesh.pp=2 stages_per_rank=0 -> stages_per_rank=1
2: mesh.pp=2 stages_per_rank=two -> stages_per_rank=auto
2: mesh.pp=2 cut=flop -> cut=flops
2: mesh.pp=2 cut=3 -> cut=flops
2: mesh.pp=2 cut=[] -> cut=flops
2: mesh.pp=2 cut=['a'] -> cut=flops
2: mesh.pp=2 cut=[1,2] -> cut=[2,2]
2: mesh.pp=2 cut=[4,0] -> cut=[2,2]
2: mesh.pp=2 cut=[1,1,2] -> cut=[2,2]
2: mesh.pp=2 stages_per_rank=2 -> schedule=interleaved or schedule=zb-v
2: mesh.pp=2 schedule=interleaved stages_per_rank=1 -> stages_per_rank=2
2: mesh.pp=2 schedule=zb-v stages_per_rank=3 -> stages_per_rank=2
2: mesh.pp=2 schedule=interleaved stages_per_rank=3 -> stages_per_rank=2
4: mesh.pp=4 schedule=zb-v -> mesh.pp=2 & ranks=2
8: mesh.pp=8 -> mesh.pp=4
2: mesh.pp=2 model.layers=1 -> model.layers=2
2: mesh.pp=2 schedule=zb-v model.layers=3 -> model.layers=4
2: mesh.pp=2 schedule=interleaved micro_batches=1 -> micro_batches=2 or micro_batches=4
2: mesh.pp=2 schedule=interleaved train.micro_batch=8 -> micro_batches=2 & train.micro_batch=auto
2: mesh.pp=2 schedule=interleaved train.global_batch=3 -> train.global_batch=4
2: mesh.pp=2 micro_batches=3 -> micro_batches=2 or micro_batches=4
2: mesh.pp=2 micro_batches=16 -> micro_batches=8
2: mesh.pp=2 micro_batches=2 train.micro_batch=2 -> -train.micro_batch
2: mesh.pp=2 train.micro_batch=3 -> train.micro_batch=2 or train.micro_batch=4
4: mesh.pp=2 mesh.dp=2 micro_batches=8 -> micro_batches=4
2: mesh.pp=2 schedule=pipedream model.tie_embeddings=false -> optimizer.clip_norm=0 or schedule=1f1b
2: mesh.pp=2 schedule=pipedream optimizer.clip_norm=0 -> model.tie_embeddings=false or schedule=1f1b
2: mesh.pp=2 schedule=pipedream micro_batches=2 optimizer.clip_norm=0 model.tie_embeddings=false \
-> micro_batches=1 or schedule=pipedream-2bw
2: mesh.pp=2 schedule=pipedream-2bw micro_batches=1 optimizer.clip_norm=0 model.tie_embeddings=false -> micro_batches=2
2: mesh.pp=2 schedule=pipedream precision.compute=fp16 optimizer.clip_norm=0 model.tie_embeddings=false \
-> precision.compute=bf16 or schedule=1f1b
2: mesh.pp=2 schedule=pipedream precision.gradients=bf16 optimizer.clip_norm=0 model.tie_embeddings=false \
-> precision.gradients=fp32 or schedule=1f1b
4: mesh.pp=2 mesh.tp=2 schedule=pipedream optimizer.clip_norm=0 model.tie_embeddings=false \
-> mesh.tp=1 or schedule=1f1b
4: mesh.pp=2 mesh.cp=2 schedule=pipedream-2bw optimizer.clip_norm=0 model.tie_embeddings=false \
-> mesh.cp=1 or schedule=1f1b
4: mesh.pp=2 data_parallel.technique=zero3 schedule=pipedream optimizer.clip_norm=0 model.tie_embeddings=false \
-> data_parallel.technique=ddp or schedule=1f1b
4: mesh.pp=2 data_parallel.hook=topk schedule=pipedream optimizer.clip_norm=0 model.tie_embeddings=false \
-> data_parallel.hook=none or schedule=1f1b
4: mesh.pp=2 data_parallel.hook=powersgd schedule=pipedream-2bw optimizer.clip_norm=0 model.tie_embeddings=false \
-> data_parallel.hook=none or schedule=1f1b
2: mesh.pp=2 schedule=pipedream drain=0 optimizer.clip_norm=0 model.tie_embeddings=false -> drain=1
2: mesh.pp=2 schedule=pipedream drain=never optimizer.clip_norm=0 model.tie_embeddings=false -> drain=50
2: mesh.pp=2 microbatches=2 -> -microbatches micro_batches=2
""",
    "optimizer": """
2: kind=adam -> kind=adamw
2: kind=SGD -> kind=sgd
2: kind=AdamW -> kind=adamw
2: kind=lion -> kind=sgd or kind=adamw
2: kind=1 -> kind=adamw
2: momentum=0.9 -> kind=sgd or -momentum
2: kind=sgd momentum=1 -> momentum=0.999999
2: kind=sgd momentum='x' -> momentum=0.0
2: kind=sgd beta1=0.9 -> kind=adamw or -beta1
2: kind=sgd beta2=0.9 -> kind=adamw or -beta2
2: kind=sgd epsilon=1e-8 -> kind=adamw or -epsilon
2: beta1=1 -> beta1=0.999999
2: beta2=1.5 -> beta2=0.999999
2: beta2='high' -> beta2=0.98
2: epsilon=-1 -> epsilon=1e-08
2: weight_decay=-0.1 -> weight_decay=0
2: weight_decay=none -> weight_decay=0.1
2: lr=-1 -> lr=0
2: lr=nan -> lr=0.003
2: lr='3e-4' -> lr=0.003
2: schedule=cosin -> schedule=cosine
2: schedule=const -> schedule=constant
2: schedule=wsd -> schedule=constant_then_decay or schedule=linear or schedule=cosine
2: schedule=Linear -> schedule=linear
2: schedule=1 -> schedule=linear
2: schedule=constant final_lr_fraction=0.1 -> schedule=cosine or -final_lr_fraction
2: schedule=cosine final_lr_fraction=2 -> final_lr_fraction=1
2: schedule=cosine decay_fraction=0.2 -> schedule=constant_then_decay or -decay_fraction
2: schedule=constant_then_decay decay_fraction=-0.1 -> decay_fraction=0
2: schedule=constant_then_decay decay_fraction=all -> decay_fraction=0.2
2: warmup_steps=-1 -> warmup_steps=0
2: clip_norm=-1 -> clip_norm=0
2: learning_rate=0.1 -> -learning_rate & lr=0.1
""",
    "mesh": """
3: dp=2 tp=2 -> ranks=4
4: tp=3 -> ranks=3 & model.heads=6 model.width=36
4: dp=2 -> ranks=2 or -dp
2: pp=4 -> ranks=4
2: tp=0 -> tp=1
2: pp=0 -> pp=1
2: cp=-1 -> cp=1
2: ep=0 -> ep=1
2: dp=-1 -> dp=0
2: tp=2.0 -> tp=1
2: tp=two -> tp=1
2: dpp=2 -> -dpp dp=2
2: train.global_batch=7 -> train.global_batch=8
3: train.global_batch=8 -> train.global_batch=9
2: train.micro_batch=3 -> train.micro_batch=2 or train.micro_batch=4
2: train.micro_batch=-1 -> train.micro_batch=0
2: train.micro_batch=most -> train.micro_batch=auto
2: train.global_batch=0 -> train.global_batch=1 & ranks=1
""",
    "precision": """
2: compute=fp8 -> compute=fp16
2: compute=f32 -> compute=fp32
2: compute=float16 -> compute=fp16
2: compute=16 -> compute=fp32
2: gradients=fp16 -> gradients=fp32 or gradients=bf16
2: reduce=fp8 -> reduce=fp16
2: reduce=16 -> reduce=auto
2: loss_scale=1024 -> compute=fp16 or -loss_scale
2: compute=fp16 loss_scale=0 -> loss_scale=1
2: compute=fp16 loss_scale=static -> loss_scale=dynamic
""",
    "memory": """
2: recompute=all -> recompute=full
2: recompute=true -> recompute=none
2: recompute=[] -> recompute=none
2: recompute=[''] -> recompute=none
2: recompute=['blocks.9'] -> recompute=['blocks.0']
2: recompute=['block.*'] -> recompute=['blocks.*']
2: recompute=stage -> recompute=full
2: recompute=stages -> recompute=stage & mesh.pp=2
2: recompute=selektive -> recompute=selective
""",
    "lora": """
2: rank=-1 -> rank=0
2: rank=1.5 -> rank=0
2: alpha=16.0 -> -alpha or rank=4
2: targets=['query'] -> -targets or rank=4
2: rank=4 alpha=-1 -> alpha=16.0
2: rank=4 alpha=big -> alpha=16.0
2: rank=4 targets=[''] -> targets=['query']
2: rank=4 targets=['quary'] -> targets=['query']
2: rank=4 targets=[] -> targets=['query']
2: rank=4 targets=4 -> targets=['query']
2: ranks=4 -> -ranks rank=4
2: dora=true -> -dora or rank=4
2: rank=4 dropout=1.5 -> dropout=0.99
2: rank=4 modules_to_save=['haed'] -> modules_to_save=['embedding','head']
2: rank=4 modules_to_save=['head'] -> modules_to_save=['embedding','head']
2: rank=4 keep_frozen=true -> -keep_frozen or data_parallel.technique=zero3
""",
    "comm": """
2: backend=shmem -> backend=shm
2: backend=1 -> backend=auto
2: overlap=false -> -overlap or mesh.tp=2
2: mesh.tp=2 overlap=0 -> overlap=false
2: backend=shm algorithms=ring.json -> -algorithms
2: threads_per_rank=-1 -> threads_per_rank=0
2: check=yes -> check=true
2: data_paralel.technique=zero3 -> -data_paralel.technique data_parallel.technique=zero3
2: expert_parallel.kind=experts -> -expert_parallel.kind
2: hook.rank=4 -> -hook.rank lora.rank=4
""",
}

# For techniques that an older build may not have: only the new build is tested.
WRONG_TODAY = {
    "data_parallel": """
2: technique=diloko -> technique=diloco
2: technique=local_sgd -> technique=diloco outer_lr=1 outer_momentum=0
2: technique=localsgd -> technique=diloco
2: technique=diloco local_steps=0 -> local_steps=1
2: technique=diloco local_steps=1.5 -> local_steps=20
2: technique=diloco local_steps=many -> local_steps=20
2: technique=diloco local_steps=2000000 -> local_steps=1048576
2: technique=diloco outer_lr=-0.1 -> outer_lr=0
2: technique=diloco outer_lr=11 -> outer_lr=10
2: technique=diloco outer_lr=nan -> outer_lr=0.7
2: technique=diloco outer_momentum=1 -> outer_momentum=0.999
2: technique=diloco outer_momentum=true -> outer_momentum=0.9
2: technique=diloco local_step=5 -> -local_step local_steps=5
2: local_steps=5 -> technique=diloco or -local_steps
2: technique=zero3 outer_lr=0.5 -> technique=diloco or -outer_lr
2: technique=param_server outer_momentum=0.5 -> technique=diloco or -outer_momentum
2: technique=diloco units=['blocks.*.mlp'] -> -units
2: technique=diloco prefetch=1 -> -prefetch
4: technique=diloco shard=2 -> technique=hsdp or -shard
2: technique=diloco mode=async -> technique=param_server or -mode
2: technique=diloco share=on -> -share
2: technique=diloco hook=powersgd -> technique=ddp or hook=none
2: technique=diloco hook=bf16 -> hook=none
2: technique=diloco precision.compute=fp16 -> precision.compute=bf16 or technique=ddp
2: technique=diloco precision.reduce=bf16 -> precision.reduce=fp32 or technique=ddp
2: technique=diloco precision.gradients=bf16 -> precision.gradients=fp32 or precision.reduce=fp32
2: technique=diloco moe.experts=4 moe.balance=batch -> moe.balance=sequence or technique=ddp
4: technique=diloco mesh.pp=2 pipeline.schedule=pipedream optimizer.clip_norm=0 model.tie_embeddings=false \
-> technique=ddp or pipeline.schedule=1f1b
4: technique=diloco mesh.pp=2 pipeline.schedule=pipedream-2bw optimizer.clip_norm=0 model.tie_embeddings=false \
-> technique=ddp or pipeline.schedule=1f1b
2: technique=diloco train.global_batch=7 -> train.global_batch=8
""",
    "context_parallel": """
2: mesh.cp=2 kind=stripe -> kind=striped
2: mesh.cp=2 kind=Striped -> kind=striped
2: kind=striped -> mesh.cp=2 or -kind
2: mesh.cp=2 kind=striped exchange=2 -> -exchange
2: mesh.cp=2 kind=striped model.context=31 -> model.context=32
3: mesh.cp=3 kind=striped -> model.context=33
4: mesh.cp=2 mesh.tp=2 kind=striped tensor_parallel.sequence=true model.context=30 -> model.context=32
4: mesh.cp=2 mesh.pp=2 kind=striped pipeline.schedule=pipedream optimizer.clip_norm=0 model.tie_embeddings=false \
-> mesh.cp=1 & -kind or pipeline.schedule=1f1b
4: mesh.cp=2 kind=striped data_parallel.technique=replicas comm.backend=thread -> mesh.cp=1 & -kind
""",
    "data_parallel (hook)": """
2: hook=bf16 -> precision.reduce=bf16 & -hook
2: hook=bfloat16 -> precision.reduce=bf16 & -hook
""",
}
