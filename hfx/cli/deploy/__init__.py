"""Write published models as deployments for a platform; check deployments and servers.

Examples:
  hfx deploy docker sentiment --output image
  hfx deploy kubernetes sentiment --output manifests --image registry.example/hfx:1
  hfx deploy check manifests
"""

COMMANDS = {
    "bundle": "hfx.cli.deploy.targets:bundle",
    "docker": "hfx.cli.deploy.targets:docker",
    "compose": "hfx.cli.deploy.targets:compose",
    "kubernetes": "hfx.cli.deploy.targets:kubernetes",
    "kserve": "hfx.cli.deploy.targets:kserve",
    "azureml": "hfx.cli.deploy.azureml",
    "check": "hfx.cli.deploy.check",
    "sagemaker": "hfx.cli.deploy.sagemaker",
}
