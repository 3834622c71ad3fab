"""What is RocketMQ's alone, above the core: its config files, and messages left by its broker."""

from onelog.core.broker import Predecessor
from onelog.rocketmq import config_files, pop_takeover

ROCKETMQ = Predecessor(config_files.load, pop_takeover.take_over)
