"""What tests share; each module's first line says what it has.

- checkpoints: tiny_checkpoints, tiny_encoders, tiny_generators, tiny_translators, writing_checkpoints, chat_tokenizers,
  generation_tokenizers, reciting, talking (trained ones: tests/zoo)
- published models and repositories: published, repositories, manifests, toy_models
- graphs: onnx_toys, onnxruntime_rig, graph_rows, encoder_line
- the engine: engine_toys, engine_rig, engine_invariants, engine_oracle, generation_models, torch_decoding,
  serving_channels
- servers: installed_triton, local_triton, short_servers, serve_process, generation_rig, generation_asks,
  generation_grpc, generation_http, dialect_calls, repeated_calls, client_servers, front_rig, certificates
- batch: batch_jobs, batch_poison, azure_scripts, spark_tables, killing
- perf: perf_fake_server, perf_rig, perf_runs, perf_samples
- the rest: documents, chromium, wheels, sagemaker_model, question_answering, processors, tiers, waiting
"""
