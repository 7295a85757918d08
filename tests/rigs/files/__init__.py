"""Files and folders: repositories, manifests, graphs, batch jobs, results of measurements."""
