"""What an operator can set: one TOML file, an env twin for each key, and flags. Read once, at the start."""

from standby.config.load import load_config as load_config
from standby.config.model import SECTIONS as SECTIONS
from standby.config.model import Config as Config
from standby.config.model import HostConfig as HostConfig
from standby.config.model import PoolConfig as PoolConfig
from standby.config.model import ProjectConfig as ProjectConfig
from standby.config.model import Source as Source
from standby.config.show import Setting as Setting
from standby.config.show import settings as settings
from standby.config.values import shown_url as shown_url
from standby.core.errors import ConfigError as ConfigError
