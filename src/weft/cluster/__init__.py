"""Many machines: devices of other machines, and what Ray places, supervises and restarts.

ray_cluster.py    joins a Ray cluster, or starts one on this machine
ray_workers.py    workers on the nodes of a cluster, as actors
running.py        a worker as a process; supervisor.py starts it again after a crash
notes.py          small notes that processes of a cluster leave for each other
kept_rows.py      answers that several processes keep in one folder
model_files.py    files of a model on machines that may lack them, by hashes of their parts
prefixes.py       who knows which prompts
routing.py        chooses the replica of a request
calibrate.py      measures the devices of workers and the links between them
run_times.py      when a worker did each step, for a client that records it
prefix_router.py  the same as a request router of Ray Serve
"""
