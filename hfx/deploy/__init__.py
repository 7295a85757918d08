"""`hfx deploy`: published models as folders of ordinary files for Triton, containers and platforms.

    deployment.py   what is deployed: models, device, release, ports and resources, every value checked
    resources.py    processors and memory that a model needs, from its manifest and its engine
    folder.py       the output: rendered from templates, hashed, published by one rename
    sizing.py autoscaling.py    pods: how large, how many, and what shows that there are too few
    bundle.py docker.py compose.py kubernetes.py kserve.py    one file a target; its templates are in templates/TARGET/
    sagemaker/      endpoints of Amazon SageMaker: archive, API calls, role; made and deleted with --apply and --delete

Nothing else here talks to a platform or needs its tools.
"""
