"""Slots as applications of a Coolify server."""

from standby.drivers.coolify.client import Client as Client
from standby.drivers.coolify.driver import LAG_MS as LAG_MS
from standby.drivers.coolify.driver import CoolifyDriver as CoolifyDriver
from standby.drivers.coolify.driver import CoolifyHost as CoolifyHost
