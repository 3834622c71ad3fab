"""Every error a peer, a disk or a user can cause, as a type with a message that says what to do.

The core raises these; each gateway maps them to its protocol's codes in one table. What only a
bug can break is asserted instead, and has no type here.
"""


class OnelogError(Exception):
    """The root of everything OneLog raises on purpose."""


class WireError(OnelogError):
    """Bytes from a peer that are not the protocol they claim to be."""


class ConfigError(OnelogError):
    """A setting that is unknown, unreadable or out of range."""


class MessageError(OnelogError):
    """A message that cannot be stored as it is. Nothing of its list was written."""


class InvalidTopicError(MessageError):
    """A topic name that is empty, too long, or has characters a file name must not have."""


class InvalidQueueError(MessageError):
    """A queue id outside the range a topic may have."""


class MessageTooLargeError(MessageError):
    """A body over the configured limit, or a record that no segment can hold."""


class PropertiesTooLargeError(MessageError):
    """Properties over the 32,767 bytes that a record's length field can express."""


class OffsetOutOfRangeError(OnelogError):
    """An offset that is negative, past the end, or already deleted."""


class StoreError(OnelogError):
    """Something about the store's folder or disk."""


class NotAStoreError(StoreError):
    """The folder holds something, but not a store."""


class StoreVersionError(StoreError):
    """A store in a format this version does not read."""


class StorePermissionError(StoreError):
    """The folder or a file in it may not be read or written by this user."""


class StoreLockedError(StoreError):
    """Another process has the store open for writing."""


class StoreFullError(StoreError):
    """No room for the bytes: the disk is full, or over the ratio at which writes are refused."""


class StoreBusyError(StoreError):
    """The system is short of file descriptors or memory for the moment; nothing was done, and the
    same may succeed a moment later."""


class StoreFailedError(StoreError):
    """The disk failed to read or to write."""


class FlushFailedError(StoreFailedError):
    """The disk failed a flush, so nobody knows what is on it: the store is read-only from now on,
    until it is opened again."""


class StoreClosedError(StoreError):
    """The store was closed, or was opened read-only and asked to write."""


class StoreCorruptError(StoreError):
    """Bytes on disk that are not what the format says must be there."""


class EmptyMessageError(MessageError):
    """A message without a body."""


class MessageTypeError(MessageError):
    """A message of another type than its topic was made for."""


class TopicNotFoundError(OnelogError):
    """A topic that does not exist here and may not be created by using it."""


class TopicPermissionError(OnelogError):
    """A topic that may not be read, or not written, by clients."""


class SystemTopicError(OnelogError):
    """A topic that the broker itself needs; it cannot be redefined or deleted."""


class GroupNotFoundError(OnelogError):
    """A consumer group that does not exist here and may not be created by using it."""


class GroupPermissionError(OnelogError):
    """A consumer group that is switched off, or may not consume in the way it asked for."""


class InvalidGroupError(OnelogError):
    """A group name that is empty, too long, or has characters a topic name must not have."""


class SubscriptionNotFoundError(OnelogError):
    """A group pulls from a topic to which no live member of it has subscribed."""


class SubscriptionOutdatedError(OnelogError):
    """The broker knows an older subscription than the consumer pulls with; its heartbeat is due."""


class FilterDisabledError(OnelogError):
    """A filter on properties, while the broker is configured to do without them."""


class ConsumersOfflineError(OnelogError):
    """A question that only live members of a group can answer, and it has none."""


class FlushTimeoutError(OnelogError):
    """A message is stored, but the disk did not confirm it in time."""


class ReplicaTimeoutError(FlushTimeoutError):
    """A message is stored, but not enough replicas confirmed it in time."""


class ReplicasMissingError(OnelogError):
    """There are fewer replicas than the message was to be kept by."""


class NotMasterError(OnelogError):
    """This broker follows another one, which is the one to ask."""


class RegistryError(OnelogError):
    """The registry of a set of replicas cannot be reached, or says what cannot be."""


class BrokerBusyError(OnelogError):
    """Too much waits for the disk already; try again in a moment."""


class StatisticNotFoundError(OnelogError):
    """A counter that nothing has counted yet."""


class InvalidRequestError(OnelogError):
    """A request in good form whose fields are missing or not what they must be."""


class PeerClosedError(OnelogError):
    """The other side closed the connection, or it could not be opened."""


class PeerTimeoutError(OnelogError):
    """The other side did not answer in time."""


class FilterSyntaxError(OnelogError):
    """A filter that cannot be read; the message says where, and what was expected there."""


class ListenError(OnelogError):
    """An address that cannot be listened on: taken, not ours, or not an address."""


class NotPermittedError(OnelogError):
    """Something that this peer may not do, or that is switched off for everybody."""

    kind = ""
    """What it would have been done to: a topic, a group, ..."""


class NotAuthenticatedError(NotPermittedError):
    """Somebody who has not logged in, or could not: wrong name, password, signature or token."""


class UserNotFoundError(OnelogError):
    """A user that does not exist."""


class UserExistsError(OnelogError):
    """A user that exists already."""


class RoleNotFoundError(OnelogError):
    """A role that does not exist."""


class KeyNotFoundError(OnelogError):
    """A key, or a whole namespace of them, that the key-value configuration does not have."""


class NotSavedError(OnelogError):
    """A change that is in force but could not be written to its file."""


class CompressionError(WireError):
    """A compressed body that cannot be unpacked."""


class UnpackedTooLargeError(CompressionError):
    """A compressed body that unpacks to more than the limit."""


class InvalidAddressError(OnelogError):
    """A text that should be host:port, or a list of those, and is not."""


class NameserversUnreachableError(OnelogError):
    """None of the name servers answered; the message says why, for each."""


class RequestRefusedError(OnelogError):
    """Another node answered a request with an error that has no type of its own."""


class PartlyDoneError(OnelogError):
    """A change that some of the brokers made and others did not; the message says which."""


class BrokerNotFoundError(OnelogError):
    """A broker or a cluster that the name servers do not know."""


class TopicExistsError(OnelogError):
    """A topic that was to be created and is there already."""


class GroupExistsError(OnelogError):
    """A consumer group that was to be created and is there already."""


class GroupOnlineError(OnelogError):
    """Something that would have no effect, or a bad one, while a group has live members."""


class MessageNotFoundError(OnelogError):
    """No message has that id or key, or is at that place."""


class TransactionNotFoundError(OnelogError):
    """No transaction is open with that half message: it ended already, or never began."""


class TransactionForeignError(OnelogError):
    """A transaction that belongs to another producer group than the one that ends it."""


class TransactionLateError(OnelogError):
    """The time in which a producer may end a transaction unasked is over; it will be asked."""


class LeaseNotFoundError(OnelogError):
    """A message that is not leased under this receipt: done already, expired, or never given."""


class InvalidReceiptError(MessageError):
    """A receipt that no broker wrote, or that was written for another message."""


class InvalidLeaseTimeError(OnelogError):
    """A time for which a message cannot be leased: negative, or too long."""


class TooManyLeasesError(BrokerBusyError):
    """A group holds as many messages as it may; it must acknowledge some before it gets more."""


class RecallError(OnelogError):
    """A message that cannot be recalled: it is not scheduled here, or its time has come."""


class ClientClosedError(OnelogError):
    """A client that was not started yet, or was closed already."""


class ForkedError(OnelogError):
    """A client that was made before the process forked; the child needs its own."""


class WrongLoopError(OnelogError):
    """A synchronous client called on the event loop that it runs on, or a client on another loop
    than its own."""


class MessageInProgressError(OnelogError):
    """Another delivery of a message is being handled; this one has to come again later."""


class SendFailedError(OnelogError):
    """No broker took a message; the message says who was tried, and why each failed."""


class QueueNotAssignedError(OnelogError):
    """A queue that a consumer does not read: it was never assigned to it, or is another's now."""


class RequestTimeoutError(OnelogError):
    """A request was sent, and nobody replied in time."""


class ReplyFailedError(OnelogError):
    """A reply did not reach the client that asked: it is gone, or refused it."""


class StagedPartError(OnelogError):
    """A commit names messages that are not staged, or not for this batch."""


class BatchFencedError(OnelogError):
    """Messages for a batch that was committed, or a batch before its turn."""


class DataLossError(OnelogError):
    """Messages that a reader was to read are gone: deleted, or of a topic that was made again."""


class TransactionOpenError(OnelogError):
    """Messages that a reader was to read are there, and not decided: their transaction is open."""


class JavaNotFoundError(OnelogError):
    """No Java that Spark runs on was found; the message says where it was looked for."""


class UndecodableError(OnelogError):
    """A message whose body is not what its schema says."""


class NotLeaderError(OnelogError):
    """Another broker has what was asked for."""


class NotCoordinatorError(OnelogError):
    """Another broker looks after what was asked for."""


class MembershipError(OnelogError):
    """A member of a group asks for what it cannot have, or not now."""


class UnknownMemberError(MembershipError):
    """Somebody who is no member of the group, or no longer."""


class IllegalGenerationError(MembershipError):
    """A member that speaks of another generation than the group's."""


class RebalanceInProgressError(MembershipError):
    """The group shares out anew: the member has to join again."""


class InconsistentProtocolError(MembershipError):
    """A member that has no way to share out in common with the others."""


class FencedInstanceError(MembershipError):
    """A static member whose name another process has taken over."""


class MemberIdRequiredError(MembershipError):
    """A new member that has to join once more, with the id that is this error's text."""


class GroupFullError(MembershipError):
    """A group that takes no more members."""


class GroupNotEmptyError(MembershipError):
    """A group that cannot be deleted while it has members."""


class InvalidSessionTimeoutError(MembershipError):
    """A time of silence that a group does not allow its members."""


class FencedMemberEpochError(MembershipError):
    """A member that is at another epoch than the broker knows: it gives up all it has."""


class StaleMemberEpochError(MembershipError):
    """Offsets of a member that has not followed the group so far."""


class UnreleasedInstanceError(MembershipError):
    """A static member's name that another member still uses."""


class UnsupportedAssignorError(MembershipError):
    """A way to share out that the broker does not know."""


class InvalidRegexError(MembershipError):
    """A subscription by a pattern that is none."""


class ProducerStateError(OnelogError):
    """A producer that numbers its batches, or has a transaction, sends what does not follow."""


class InvalidProducerEpochError(ProducerStateError):
    """A producer whose place another one has taken."""


class OutOfOrderSequenceError(ProducerStateError):
    """A batch whose number does not follow its producer's last one."""


class TransactionStateError(ProducerStateError):
    """A step of a transaction that does not follow the one before."""


class NotInTransactionError(TransactionStateError):
    """Something outside of its producer's transaction, which can only be aborted."""


class ProducerFencedError(ProducerStateError):
    """A producer of a transactional id that another process has taken over."""


class ProducerIdMismatchError(ProducerStateError):
    """A transactional id that is not, or no longer, this producer's."""


class InvalidTransactionTimeoutError(ProducerStateError):
    """A time that no transaction may last."""


class TransactionEndingError(ProducerStateError):
    """A transaction whose end could not be written yet: try again."""


class RoutingError(OnelogError):
    """Something about exchanges, and the queues that they lead to."""


class VhostNotFoundError(RoutingError):
    """A virtual host that does not exist here."""


class ExchangeNotFoundError(RoutingError):
    """An exchange that does not exist in its virtual host."""


class QueueNotFoundError(RoutingError):
    """A queue that does not exist in its virtual host."""


class AccessRefusedError(NotPermittedError):
    """Something that may not be done to this exchange or queue, by whoever it is."""


class ResourceLockedError(RoutingError):
    """A queue that is another connection's alone, or that only one consumer may read."""


class PreconditionFailedError(RoutingError):
    """What is asked for does not fit what is there: other settings, still in use, a bad value."""


class ReadOnlyQueueError(PreconditionFailedError):
    """A stream is read by position: messages cannot be taken out of it."""


class QueueFullError(RoutingError):
    """A queue has as much as it may have, and is told to refuse what comes."""
