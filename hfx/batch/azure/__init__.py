"""Azure ML's batch endpoints, deployments and jobs, as files on this machine."""
