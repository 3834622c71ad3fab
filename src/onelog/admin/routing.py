"""Operations on exchanges, bindings and queues of AMQP's model; and where a message would go."""

from typing import Annotated, Any, Literal

from msgspec import Struct, field

from onelog.admin.operations import Arguments, ItsName, Name, Named, Paged, about, declared

Key = Annotated[str, about("The routing key.", max_length=255)]
Durable = Annotated[bool, about("It is there after a restart.")]
AutoDelete = Annotated[bool, about("It goes with the last one that used it.")]
Table = Annotated[dict[str, Any], about("NAME=VALUE. Repeatable.", "--argument")]
Vhost = Annotated[str, about("Of which vhost.", min_length=1, max_length=255)]


class VhostQuery(Paged):
    """Of which vhost, and which of them."""

    vhost: Vhost = "/"


class OneOfVhost(Named):
    """Which of them."""

    vhost: Vhost = "/"


class ExchangeSettings(Struct):
    """An exchange."""

    name: str
    vhost: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]
    bindings: int


class NewExchange(Arguments, kw_only=True):
    """An exchange to declare."""

    name: ItsName
    kind: Annotated[str, about("direct, fanout, topic or headers.", max_length=255)] = "direct"
    vhost: Vhost = "/"
    durable: Durable = True
    auto_delete: AutoDelete = False
    internal: Annotated[bool, about("Only other exchanges publish to it.")] = False
    arguments: Table = field(default_factory=dict)


class WorkQueueState(Struct):
    """A queue, and what waits in it."""

    name: str
    vhost: str
    kind: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    ready: int
    unacked: int
    ready_bytes: int
    consumers: int
    topic: str | None
    """The topic that has its messages, if they are in the log."""


class NewQueue(Arguments, kw_only=True):
    """A queue to declare."""

    name: ItsName
    vhost: Vhost = "/"
    durable: Durable = True
    auto_delete: AutoDelete = False
    arguments: Table = field(default_factory=dict)


class BindingQuery(Arguments):
    """Of which vhost, and from which exchange."""

    vhost: Vhost = "/"
    source: Annotated[str, about("Only from this exchange.", max_length=255)] | None = None


class BindingSettings(Struct):
    """What leads from an exchange to a queue, an exchange or a topic."""

    source: str
    kind: str
    destination: str
    key: str
    arguments: dict[str, Any]


class NewBinding(Arguments, kw_only=True):
    """A binding to make, or to undo."""

    source: Annotated[Name, about("The exchange.")]
    destination: Annotated[Name, about("Where messages go.")]
    kind: Annotated[Literal["queue", "exchange", "topic"], about("What that is.")] = "queue"
    key: Key = ""
    vhost: Vhost = "/"
    arguments: Table = field(default_factory=dict)
    remove: Annotated[bool, about("Unbind.", "--remove")] = False


class RouteQuery(Arguments):
    """A message that could be published."""

    exchange: Annotated[str, about("The exchange.", max_length=255)] = ""
    key: Key = ""
    vhost: Vhost = "/"
    headers: Annotated[str, about("name=value, between commas", max_length=2_000)] = ""


class Hop(Struct):
    """One step on the way: which binding leads on, or why another one does."""

    source: str
    kind: str
    destination: str
    why: str


class RouteResult(Struct):
    """Where it would go, and why."""

    queues: list[str]
    hops: list[Hop]


OPERATIONS = declared(
    globals(),
    """
    GET /v1/exchanges = exchange list
        list_exchanges(VhostQuery) -> Listing[ExchangeSettings]: List exchanges
    POST /v1/exchanges = exchange create
        declare_exchange(NewExchange) -> ExchangeSettings 201: Declare an exchange
    DELETE /v1/exchanges/{name} = exchange delete
        delete_exchange(OneOfVhost) -> Done: Delete an exchange
    GET /v1/queues = queue list
        list_work_queues(VhostQuery) -> Listing[WorkQueueState]: List declared queues
    POST /v1/queues = queue create
        declare_queue(NewQueue) -> WorkQueueState 201: Declare a queue
    DELETE /v1/queues/{name} = queue delete
        delete_queue(OneOfVhost) -> Done: Delete a queue
    DELETE /v1/queues/{name}/messages = queue purge
        purge_queue(OneOfVhost) -> Done: Empty a queue
    GET /v1/bindings = exchange bindings
        list_bindings(BindingQuery) -> Listing[BindingSettings]: List bindings
    POST /v1/bindings = exchange bind, bind
        bind(NewBinding) -> Done: Bind, or unbind
    GET /v1/route = exchange route
        simulate_route(RouteQuery) -> RouteResult: Where a message would go, and why
    """,
)
