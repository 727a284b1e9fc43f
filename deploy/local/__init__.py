"""The local stack: what `docker-compose.yml` lists, as plain processes with one supervisor and no Docker.

topology   reads the compose file (pure)
places     maps container addresses and folders to this machine (pure)
process    one supervised process: start, health, restart, stop
supervisor all of them, in dependency order, scaled while they run
control    how `ps`, `down`, `scale` talk to a running supervisor
cli        the commands
"""
