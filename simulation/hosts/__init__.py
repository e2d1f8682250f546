"""The world that is simulated: time, disks, network, and the processes on them."""
