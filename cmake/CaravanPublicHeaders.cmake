# The headers that are installed: those that README, the examples and the documents name for users, and what they
# include. Everything else may change without notice.
cmake_policy(VERSION 3.22)  # an install script has no cmake_minimum_required
set(CARAVAN_PUBLIC_HEADERS
  base/error.h base/memory/memory_counter.h base/runtime.h base/text.h
  comm/communicator.h comm/options.h comm/record.h comm/backends/shared/thread_ranks.h comm/store/rendezvous.h comm/tensor.h
  comm/world.h
  global/creating.h global/global.h global/module.h global/names.h
  mesh/layout.h mesh/mesh.h mesh/placement.h redistribute/redistribute.h
  engine/stages/stage_runner.h techniques/recompute/recompute.h techniques/tiling/tiling.h module/adapter.h module/module.h module/plan/plan.h techniques/data/ddp.h techniques/data/zero.h
  techniques/compression/compress_hook.h techniques/server/param_server.h techniques/compression/power_sgd.h techniques/averaging/replicas.h techniques/compression/top_k.h
  techniques/context/context_parallel.h techniques/expert/expert_parallel.h techniques/tensor/tensor_1d.h techniques/grid/tensor_2d.h techniques/grid/tensor_25d.h techniques/grid/tensor_3d.h techniques/context/ring_attention.h techniques/data/sync_batch_norm.h techniques/server/async_trainer.h
  techniques/make_strategy.h techniques/pipeline/pipeline.h prove/prove.h
  nn/experts/experts.h models/model.h nn/experts/router.h optim/adafactor.h optim/grad_norm.h optim/learning_rate.h optim/lion.h optim/loss_scale.h optim/muon.h optim/optimizer.h optim/spike_guard.h
  data/files/corpus.h data/windows/sampler.h data/tokenizer/tokenizer.h
  caravan.h formats/checkpoint/checkpoint.h formats/huggingface/huggingface.h formats/huggingface/load_model.h
  session/autocast.h session/candidates.h session/kept.h session/load.h session/module_checkpoint.h session/parallelize.h session/plan_module.h session/run_program.h session/session.h session/sharded_sampler.h session/trials.h
  generate/generate.h generate/load.h train/evaluation/evaluate.h recipe/recipe.h train/folder/run_state.h
  step/batch.h step/train_step.h cost/rehearsal.h)

# caravan_install_headers(source destination): runs at install time, so that it sees the includes as they are then.
function(caravan_install_headers source destination)
  set(queue ${CARAVAN_PUBLIC_HEADERS})
  set(installed "")
  while(queue)
    list(POP_FRONT queue header)
    if(header IN_LIST installed)
      continue()
    endif()
    if(header MATCHES "/(messages|stubs)/|^comm/backends/shared/" AND NOT header IN_LIST CARAVAN_PUBLIC_HEADERS)
      message(FATAL_ERROR "${header} is internal, but a public header includes it: see cmake/CaravanPublicHeaders.cmake")
    endif()
    list(APPEND installed ${header})
    file(STRINGS ${source}/${header} includes REGEX "^#include \"caravan/")
    list(TRANSFORM includes REPLACE "^#include \"caravan/([^\"]+)\".*$" "\\1")
    list(APPEND queue ${includes})
    get_filename_component(folder ${header} DIRECTORY)
    file(INSTALL ${source}/${header} DESTINATION ${destination}/caravan/${folder})
  endwhile()
endfunction()
