"""Many machines: devices of other machines, and what Ray places, supervises and restarts.

running.py        a worker's links, its process, and the supervisor that starts it after a crash
lent.py           the devices, files and memory that it lends
session.py        the frames of a client; commands.py what they do
weights.py        a worker's files by hash, and tensors that it was sent
streams.py        copies from worker to worker
ray_cluster.py    joins a Ray cluster, or starts one on this machine
ray_workers.py    workers on the nodes of a cluster, as actors
kept_rows.py      answers that several processes keep in one folder
model_files.py    files of a model on machines that may lack them, by hashes of their parts
prefixes.py       who knows which prompts
routing.py        chooses the replica of a request
calibrate.py      measures the devices of workers and the links between them
run_times.py      when a worker did each step, for a client that records it
prefix_router.py  the same as a request router of Ray Serve
"""
