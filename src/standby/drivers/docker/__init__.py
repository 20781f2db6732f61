"""Runs as containers of a Docker engine."""

from standby.drivers.docker.driver import DockerDriver as DockerDriver
