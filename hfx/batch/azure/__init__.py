"""Azure ML's batch endpoints, deployments and jobs on this machine, stored as files in a workspace folder."""
