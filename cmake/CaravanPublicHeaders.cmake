# The headers that are installed: those that README, the examples and the documents name for users, and what they
# include. Everything else may change without notice.
cmake_policy(VERSION 3.22)  # an install script has no cmake_minimum_required
set(CARAVAN_PUBLIC_HEADERS
  base/error.h base/memory_counter.h base/runtime.h base/text.h
  comm/communicator.h comm/options.h comm/record.h comm/shared/thread_ranks.h comm/store/rendezvous.h comm/tensor.h
  comm/world.h
  mesh/layout.h mesh/mesh.h mesh/placement.h redistribute/redistribute.h
  engine/stage_runner.h memory/recompute.h module/adapter.h module/module.h module/plan.h parallel/ddp.h parallel/zero.h
  parallel/compress_hook.h parallel/param_server.h parallel/power_sgd.h parallel/replicas.h parallel/top_k.h
  parallel/context_parallel.h parallel/expert_parallel.h parallel/tensor_1d.h parallel/tensor_2d.h parallel/tensor_25d.h parallel/tensor_3d.h parallel/ring_attention.h parallel/sync_batch_norm.h server/async_trainer.h
  techniques/make_strategy.h parallel/pipeline.h prove/prove.h
  nn/experts.h nn/model.h nn/router.h optim/grad_norm.h optim/learning_rate.h optim/loss_scale.h optim/optimizer.h
  data/corpus.h data/sampler.h data/tokenizer.h
  caravan.h checkpoint/checkpoint.h checkpoint/huggingface.h checkpoint/load_model.h
  session/module_checkpoint.h session/session.h
  generate/generate.h train/evaluate.h train/recipe.h train/run_state.h
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
    if(header MATCHES "/(messages|stubs)/|^comm/shared/" AND NOT header IN_LIST CARAVAN_PUBLIC_HEADERS)
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
