"""Our settings under RocketMQ's names, as its tools show them and change them.

Where RocketMQ counts in other units (hours, bytes instead of entries) or has other words, values
are translated both ways. Every setting can also be named by its own key, such as `broker.port`.

What RocketMQ has and OneLog need not, such as the sizes of its thread pools, is accepted and does
nothing, so that scripts written for RocketMQ run through. What promises a protection that would
then not be there is refused.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from onelog.config import Config, Value
from onelog.config_sources import SETTINGS, value_of
from onelog.errors import ConfigError

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
QUEUE_ENTRY_BYTES = 20
UNIQUE_KEY_COUNT_MAX = 32
"""Messages in one answer by unique key, RocketMQ's defaultQueryMaxNum."""


class Translation(NamedTuple):
    """How a value looks to RocketMQ's tools, and how what they say looks to us."""

    show: Callable[[Value], str]
    read: Callable[[str], str]


def _show(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 20:
        raise ConfigError(f"{text[:40]!r} is not a whole number")
    return int(text)


_SAME = Translation(_show, str)
_HOURS = Translation(
    lambda value: f"{int(value) / HOUR_MS:g}", lambda text: str(_whole(text) * HOUR_MS)
)
_SECONDS = Translation(
    lambda value: f"{int(value) / 1_000:.10g}", lambda text: str(_whole(text) * 1_000)
)
_ENTRIES = Translation(
    lambda value: str(int(value) * QUEUE_ENTRY_BYTES),
    lambda text: str(_whole(text) // QUEUE_ENTRY_BYTES),
)
_FLUSH = Translation(
    lambda value: f"{value}_FLUSH".upper(), lambda text: text.removesuffix("_FLUSH").lower()
)
_UPPER = Translation(lambda value: str(value).upper(), str.lower)

NAMES: dict[str, tuple[str, Translation]] = {
    "brokerName": ("broker.name", _SAME),
    "brokerClusterName": ("broker.cluster", _SAME),
    "brokerId": ("broker.broker_id", _SAME),
    "regionId": ("broker.region", _SAME),
    "listenPort": ("broker.port", _SAME),
    "namesrvAddr": ("broker.nameservers", _SAME),
    "registerNameServerPeriod": ("broker.register_interval_ms", _SAME),
    "registerBrokerTimeoutMills": ("broker.register_timeout_ms", _SAME),
    "autoCreateTopicEnable": ("broker.auto_create_topics", _SAME),
    "autoCreateSubscriptionGroup": ("broker.auto_create_groups", _SAME),
    "defaultTopicQueueNums": ("broker.default_topic_queues", _SAME),
    "enablePropertyFilter": ("broker.property_filter", _SAME),
    "longPollingEnable": ("broker.long_poll", _SAME),
    "shortPollingTimeMills": ("broker.short_poll_ms", _SAME),
    "traceOn": ("broker.trace", _SAME),
    "channelExpiredTimeout": ("broker.client_expiry_ms", _SAME),
    "flushConsumerOffsetInterval": ("broker.offsets_flush_ms", _SAME),
    "syncFlushTimeout": ("broker.flush_timeout_ms", _SAME),
    "maxTransferBytesOnMessageInMemory": ("broker.pull_bytes_max", _SAME),
    "maxTransferCountOnMessageInMemory": ("broker.pull_count_max", _SAME),
    "maxTransferBytesOnMessageInDisk": ("broker.pull_cold_bytes_max", _SAME),
    "maxTransferCountOnMessageInDisk": ("broker.pull_cold_count_max", _SAME),
    "maxMsgsNumBatch": ("broker.query_count_max", _SAME),
    "storePathRootDir": ("broker.store_path", _SAME),
    "mappedFileSizeCommitLog": ("store.segment_bytes", _SAME),
    "mappedFileSizeConsumeQueue": ("store.queue_file_entries", _ENTRIES),
    "maxHashSlotNum": ("store.index_slots", _SAME),
    "maxIndexNum": ("store.index_entries", _SAME),
    "maxMessageSize": ("store.body_bytes_max", _SAME),
    "enabledAppendPropCRC": ("store.record_crc", _SAME),
    "flushDiskType": ("store.flush", _FLUSH),
    "flushIntervalCommitLog": ("store.flush_interval_ms", _SAME),
    "flushCommitLogLeastPages": ("store.flush_pages_min", _SAME),
    "flushCommitLogThoroughInterval": ("store.flush_thorough_ms", _SAME),
    "fileReservedTime": ("store.retention_ms", _HOURS),
    "deleteWhen": ("store.retention_hours", _SAME),
    "deleteFileBatchMax": ("store.retention_files_per_round", _SAME),
    "diskMaxUsedSpaceRatio": ("store.disk_clean_percent", _SAME),
    "diskSpaceCleanForciblyRatio": ("store.disk_force_percent", _SAME),
    "diskSpaceWarningLevelRatio": ("store.disk_refuse_percent", _SAME),
    "messageDelayLevel": ("store.delay_levels", _SAME),
    "transactionTimeOut": ("broker.transaction_timeout_ms", _SAME),
    "transactionCheckMax": ("broker.transaction_check_max", _SAME),
    "transactionCheckInterval": ("broker.transaction_check_interval_ms", _SAME),
    "defaultMessageRequestMode": ("broker.default_request_mode", _UPPER),
    "defaultPopShareQueueNum": ("broker.default_pop_share", _SAME),
    "slaveReadEnable": ("replication.slave_reads", _SAME),
    "accessMessageInMemoryMaxRatio": ("replication.slave_reads_percent", _SAME),
    "popFromRetryProbability": ("broker.pop_retry_percent", _SAME),
    "popFromRetryProbabilityForPriority": ("broker.priority_retry_percent", _SAME),
    "priorityOrderAsc": ("broker.priority_ascending", _SAME),
    "useSeparateRetryQueue": ("broker.pop_separate_retry", _SAME),
    "timerMaxDelaySec": ("broker.timer_delay_max_ms", _SECONDS),
}
"""RocketMQ's name, our key, and how values translate."""
PROTECTIONS = frozenset(
    (
        "aclEnable",
        "authenticationEnabled",
        "authorizationEnabled",
        "brokerPermission",
        "rejectPullConsumerEnable",
        "rejectTransactionMessage",
    )
)
"""Settings of RocketMQ that people rely on, and that OneLog does not have."""
_ignored: set[str] = set()
"""Those that were said to be ignored."""


def as_properties(config: Config) -> dict[str, str]:
    """Everything that is set: first under RocketMQ's names, then under our own keys."""
    section = config.broker
    found = {
        name: translation.show(value_of(config, key)) for name, (key, translation) in NAMES.items()
    }
    found |= {
        "brokerIP1": section.client_host,
        "brokerPermission": "6",
        "brokerRole": "SLAVE" if section.broker_id else "ASYNC_MASTER",
        "haListenPort": str(section.port + 1),
        "storePathCommitLog": f"{section.store_path}/commitlog",
        "defaultQueryMaxNum": str(UNIQUE_KEY_COUNT_MAX),
        "traceTopicEnable": _show(section.trace),
        "timerWheelEnable": "true",
        "timerPrecisionMs": "1",
    }
    return found | {key: _show(value_of(config, key)) for key in SETTINGS}


def as_settings(properties: dict[str, str]) -> dict[str, str]:
    """Changes under whichever names as changes of our settings; `ConfigError` if one is none."""
    changes: dict[str, str] = {}
    for name, text in properties.items():
        key, translation = NAMES.get(name, (name, _SAME))
        if key not in SETTINGS:
            _check_ignored(name)
            continue
        if key in changes:
            raise ConfigError(f"{key} is set twice, once as {name}")
        changes[key] = translation.read(text)
    return changes


def _check_ignored(name: str) -> None:
    """`ConfigError` unless this is a setting of RocketMQ that may be ignored."""
    if name in PROTECTIONS:
        raise ConfigError(
            f"RocketMQ's setting {name} would not be obeyed: OneLog has no such thing"
        )
    if name not in ROCKETMQ_SETTINGS:
        raise ConfigError(f"neither OneLog nor RocketMQ has a setting {name[:80]!r}")
    if name not in _ignored:
        _ignored.add(name)
        log.warning("RocketMQ's setting %r is accepted and ignored: OneLog need not have it", name)


ROCKETMQ_SETTINGS: frozenset[str] = frozenset(
    """
accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio accountStatsEnable
accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity
aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond aclEnable adminBrokerThreadPoolNums
adminBrokerThreadPoolQueueCapacity allAckInSyncStateSet allowRecallWhenBrokerNotWriteable
appendAckAsync appendCkAsync appendTopicForTimerDeleteKey asyncLearner asyncSendEnable
authConfigPath authenticationEnabled authenticationMetadataProvider authenticationProvider
authenticationStrategy authenticationWhitelist authorizationEnabled
authorizationMetadataProvider authorizationProvider authorizationStrategy authorizationWhitelist
autoCreateSubscriptionGroup autoCreateTopicEnable autoDeleteUnusedStats
autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums bindAddress
bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore
broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerClusterName brokerConfigPath
brokerElectionPriority brokerFastFailureEnable brokerHeartbeatInterval brokerIP1 brokerIP2
brokerId brokerName brokerNotActiveTimeoutMillis brokerPermission brokerRole brokerTopicEnable
cgColdReadThreshold channelExpiredTimeout channelNotActiveInterval checkCRCOnRecover
checkCommitLogOffsetOnRecover checkSyncStateSetPeriod cleanFileForciblyEnable
cleanOfflineBrokerInterval cleanResourceInterval cleanRocksDBDirtyCQIntervalMin
cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue
clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
clientWorkerThreads clusterName clusterTopicEnable coldCtrStrategyEnable
coldDataFlowControlEnable coldDataScanEnable combineAssignOffsetCQType combineCQEnableCheckSelf
combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType
combineCQUseRocksdbForLmq commercialBaseCount commercialSizePerMsg commitCommitLogLeastPages
commitCommitLogThoroughInterval commitIntervalCommitLog commitLogForceSwapMapInterval
commitLogRecoverMaxNum commitLogRollingInterval commitLogRollingMinimumSize
commitLogSwapMapInterval commitLogSwapMapReserveFileNum compactionCqMappedFileSize
compactionMappedFileSize compactionScheduleInternal compactionThreadNum compatibleWithOldNameSrv
compressedRegister configBlackList configManagerVersion configName connectTimeoutMillis
consumerFallbehindThreshold consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
consumerOffsetUpdateVersionStep controllerAddr controllerHeartBeatTimeoutMills
correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers
dLegerSelfId dataReadAheadEnable debugLockEnable defaultMessageRequestMode
defaultPopShareQueueNum defaultQueryMaxNum defaultTopicQueueNums delayOffsetUpdateVersionStep
deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax deleteWhen
destroyMapedFileIntervalForcibly disableCallbackExecutor disableConsumeIfConsumerReadSlowly
disableNettyWorkerGroup disappearTimeAfterStart diskFallRecorded diskMaxUsedSpaceRatio
diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio dispatchCqCacheNum dispatchCqThreads
dispatchFromSenderThread duplicationEnable enableAcceleratedRecovery enableAsyncReput
enableAutoInSyncReplicas enableBatchPush enableBroadcastOffsetStore
enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCleanExpiredOffset
enableCompaction enableConnectionMetrics enableConsumeQueueExt enableControllerMode
enableCreateSysGroup enableDLegerCommitLog enableDetailStat enableFastChannelEventProcess
enableLagAndDlqMetrics enableLiteEventMode enableLitePopLog enableLmq enableLmqQuota
enableLmqStats enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics
enableMixedMessageType enableMultiDispatch enableNetWorkFlowControl
enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics
enablePropertyFilter enableReconnectForGoAway enableRegisterProducer enableRemoteEscape
enableRemotingMetrics enableRequestMetrics enableRetryTopicV2 enableRocksDBLog
enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
enableShutdownGracefully enableSingleTopicRegister enableSkipLongAwaitingAck
enableSlaveActingMaster enableSplitMetadata enableSplitRegistration enableStatsMetrics
enableTransactionMetrics enabledAppendPropCRC endTransactionPoolQueueCapacity
endTransactionThreadPoolNums estimateAccumulation expectConsumerNumUseFilter
fastFailIfNoBufferInStorePool fetchControllerAddrByDnsLookup fetchNameSrvAddrByDnsLookup
fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval fileReservedTime
filterDataCleanTimeSpan filterSupportRetry flushCommitLogLeastPages
flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval flushConsumerOffsetInterval
flushDelayOffsetInterval flushDiskType flushIntervalCommitLog flushIntervalConsumeQueue
flushLeastPagesWhenWarmMapedFile forceRegister forceVerifyPropCRC forwardTimeout
globalColdReadThreshold haFlowControlEnable haHousekeepingInterval haListenPort haMasterAddress
haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haTransferBatchSize
heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode inSyncReplicas
indexFileReadEnable indexFileWriteEnable indexRocksDBEnable initAuthenticationUser
initPopOffsetByCheckMsgInMem innerClientAuthenticationCredentials isBrokerContainer
isInBrokerContainer isScanAvailableNameSrv isolateLogEnable iteratorWhenUseRocksdbConsumeQueue
listenPort liteEventCheckInterval liteEventFullDispatchDelayTime
liteEventFullDispatchDelayTimeForWildcardGroup liteLagCountMetricsEnable
liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK litePullMessageEnable
litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity liteSubscriptionCheckInterval
liteSubscriptionCheckTimeoutMills liteTtlCheckInterval loadBalancePollNameServerInterval
loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
logicalDiskSpaceCleanForciblyThreshold longPollingEnable mappedFileSizeCommitLog
mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog
mappedFileSwapEnable mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests
maxBatchDeleteFilesNum maxChecksumRange maxClientEventCount maxConsumeQueueScan
maxErrorRateOfBloomFilter maxFilterMessageSize maxHaTransferByteInSecond maxHashSlotNum
maxIndexNum maxLiteSubscriptionCount maxLmqConsumeQueueNum maxMessageFilterNumForNotification
maxMessageSize maxMsgsNumBatch maxOffsetMapSize maxPopPollingSize
maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles maxRocksDBIndexQueryDays
maxSlaveResendLength maxStatsIdleTimeInMinutes maxTopicLength maxTransferBytesOnMessageInDisk
maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
maxTransferCountOnMessageInMemory memTableFlushIntervalMs messageDelayLevel messageIndexEnable
messageIndexSafe messageStorePlugIn metricGrpcExporterIntervalInMills
metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
metricsExportBatchMaxDataPoints metricsExporterType metricsGrpcExporterHeader
metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
metricsPromExporterHost metricsPromExporterPort migrateAuthFromV1Enabled minInSyncReplicas
minLiteTTl msgTraceTopicName namesrvAddr notifyConsumerIdsChangedEnable objectStoreAccessKey
objectStoreBucket objectStoreEndpoint objectStoreSecretKey offsetCheckInSlave
osPageCacheBusyTimeOutMills persistConsumerOffsetIncrementally popCkMaxBufferSize
popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog
popFromRetryProbability popFromRetryProbabilityForPriority popInflightMessageThreshold
popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
popPollingSize popResponseReturnActualRetryTopic popReviveConcurrency popReviveMaxAttemptTimes
popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent preferredLeaderId printChannelGroups
printChannelGroupsMinNum priorityOrderAsc processReplyMessageThreadPoolNums
pullBatchMaxMessageCount pullMessageThreadPoolNums pullThreadPoolQueueCapacity
putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums putMessageTimeout
putMsgIndexHightWater putThreadPoolQueueCapacity queryMessageThreadPoolNums
queryThreadPoolQueueCapacity readAheadCacheEnable readAheadCacheExpireDuration
readAheadCacheSizeThresholdRate readAheadMessageCountThreshold readAheadMessageSizeThreshold
readOnlyCommitLogStorePaths readUnCommitted realTimeNotifyConsumerChange
realTimePersistRocksDBConfig recallMessageEnable recheckReputOffsetFromCq recordGetMessageResult
recoverConcurrently recoverThreadPoolNums redeleteHangedFileInterval regionId
registerBrokerTimeoutMills registerNameServerPeriod rejectPullConsumerEnable
rejectTransactionMessage replicasPerDiskPartition replyThreadPoolQueueCapacity
retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum
reviveScanTime rocketmqHome rocksdbCQDoubleWriteEnable rocksdbCompressionType
rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
searchBcqByCacheEnable sendHeartbeatTimeoutMillis sendMessageThreadPoolNums
sendThreadPoolQueueCapacity serverAsyncSemaphoreValue serverCallbackExecutorThreads
serverChannelMaxIdleTimeSeconds serverLoadBalancerEnable serverNettyWorkerGroupEnable
serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
sharedByteBufferNum shortPollingTimeMills shutdownWaitTimeSeconds skipPreOnline
skipWhenCKRePutReachMaxTimes slaveReadEnable slaveTimeout socksProxyConfig
spinLockCollisionRetreatOptimalDegree splitMetadataSize splitRegistrationSize
startAcceptSendRequestTimeStamp statRocksDBCQIntervalSec
statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum storePathBrokerIdentity
storePathCommitLog storePathDLedgerCommitLog storePathEpochFile storePathRootDir
storeReplyMessageEnable storeType subscriptionExpiredTimeout syncBrokerMemberGroupPeriod
syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFlushTimeout syncFromLastFile
syncMasterFlushOffsetWhenStartup tieredBackendServiceProvider tieredMetadataServiceProvider
tieredStorageLevel tieredStoreCommitLogMaxSize tieredStoreConsumeQueueMaxSize
tieredStoreCrcCheckEnable tieredStoreDeleteFileEnable tieredStoreDeleteFileInterval
tieredStoreFilePath tieredStoreFileReservedTime tieredStoreGroupCommit
tieredStoreGroupCommitCount tieredStoreGroupCommitSize tieredStoreGroupCommitTimeout
tieredStoreIndexFileMaxHashSlotNum tieredStoreIndexFileMaxIndexNum
tieredStoreMaxGroupCommitCount tieredStoreMaxPendingLimit timerCheckMetricsWhen
timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics
timerEnableDisruptor timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum
timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold timerPrecisionMs
timerProgressLogIntervalMs timerPutMessageThreadNum timerRecallToTimeWheelEnable
timerRecallToTimelineEnable timerReputServiceCorePoolSize timerReputServiceMaxPoolSize
timerReputServiceQueueCapacity timerRocksDBEnable timerRocksDBPrecisionMs
timerRocksDBRollIntervalHours timerRocksDBRollMaxTps timerRocksDBRollRangeHours
timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps timerRollWindowSlot timerSkipUnknownError
timerStopDequeue timerStopEnqueue timerWarmEnable timerWheelEnable timerWheelSnapshotFlush
timerWheelSnapshotIntervalMs topicQueueLockNum totalReplicas traceOn traceTopicEnable
transRocksDBEnable transWriteOriginTransHalfEnable transactionCheckInterval transactionCheckMax
transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
transactionCheckRocksdbQueueCapacity transactionMetricFlushInterval transactionOpBatchInterval
transactionOpMsgMaxSize transactionTimeOut transferMsgByHeap transientStorePoolEnable
transientStorePoolSize travelCqFileNumWhenGetMessage updateNameServerAddrPeriod useABSLock
useEpollNativeSelector useMessageFilterForNotification usePIDColdCtrStrategy
useReentrantLockWhenPutMessage useSeparateRetryQueue useSeparateStorePathForRocksdbCQ
useServerSideResetOffset useSingleRocksDBForAllConfigs useStaticSubscription useTLS
userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond validateSystemTopicWhenUpdateTopic
waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
waitTimeMillsInTransactionQueue wakeCommitWhenPutMessage wakeFlushWhenPutMessage
warmMapedFileEnable writeBufferHighWaterMark writeBufferLowWaterMark writeWithoutMmap
""".split()
)
"""The names of all settings that RocketMQ 5.5.0's broker has: the fields of its BrokerConfig,
BrokerIdentity, MessageStoreConfig, NettyServerConfig, NettyClientConfig and AuthConfig, and of the
MessageStoreConfig of its tiered store. Most are about threads, caches and files that OneLog has
not."""
