"""A client of the HTTP API: finds its server, says what was refused, repeats only what is safe to repeat."""

from standby.client.address import Address as Address
from standby.client.address import find_address as find_address
from standby.client.blocking import Client as Client
from standby.client.errors import ServerRefused as ServerRefused
from standby.client.errors import ServerUnreachable as ServerUnreachable
