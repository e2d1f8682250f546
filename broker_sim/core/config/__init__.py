"""The broker's configurations: what one option is, the table of all, the values in force."""

from broker_sim.core.config.group_options import GROUP_CONFIG, check_group_limits
from broker_sim.core.config.key import (
    INT32_MAX,
    INT64_MAX,
    ConfigError,
    ConfigKey,
    ConfigKind,
    ConfigValue,
    DataDirectoryError,
    format_value,
)
from broker_sim.core.config.live_config import (
    BrokerConfig,
    ConfigSource,
    check_topic_configs,
    config_sources,
    group_config_value,
    parse_group_configs,
    parse_properties,
    parse_topic_config,
    topic_config_value,
)
from broker_sim.core.config.security import AUTHORIZER, MECHANISMS, OAUTHBEARER
from broker_sim.core.config.table import (
    ALIASES,
    BROKER_CONFIG,
    DYNAMIC_CONFIGS,
    TOPIC_CONFIG,
    TopicConfigKey,
)

__all__ = [
    "ALIASES",
    "AUTHORIZER",
    "BROKER_CONFIG",
    "DYNAMIC_CONFIGS",
    "GROUP_CONFIG",
    "INT32_MAX",
    "INT64_MAX",
    "MECHANISMS",
    "OAUTHBEARER",
    "TOPIC_CONFIG",
    "BrokerConfig",
    "ConfigError",
    "ConfigKey",
    "ConfigKind",
    "ConfigSource",
    "ConfigValue",
    "DataDirectoryError",
    "TopicConfigKey",
    "check_group_limits",
    "check_topic_configs",
    "config_sources",
    "format_value",
    "group_config_value",
    "parse_group_configs",
    "parse_properties",
    "parse_topic_config",
    "topic_config_value",
]
