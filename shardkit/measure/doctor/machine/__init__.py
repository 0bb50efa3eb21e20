"""What the machine did while a script ran: cores, disks, memory, GPUs."""
