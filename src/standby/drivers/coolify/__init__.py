"""Slots as applications of a Coolify server."""

from standby.drivers.coolify.driver import CoolifyDriver as CoolifyDriver
from standby.drivers.coolify.driver import CoolifyHost as CoolifyHost
