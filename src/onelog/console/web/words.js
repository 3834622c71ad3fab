// The console in two languages. English is what is written in the pages; here is the other.

const ZH = {
  "(empty)": "（空）", "A topic as a table in Spark:": "在 Spark 中把主题当作表：", "A transaction that hangs keeps its readers waiting.": "悬而未决的事务会让读者一直等待。",
  "Abort": "中止", "About": "概况", "Actions": "操作", "Address": "地址", "Are you sure?": "确定吗？", "As each protocol sees it": "各协议看到的样子",
  "Ask again about a half message…": "重新回查半消息…", "Attributes": "属性", "Be done with all": "全部标记为已处理", "Begin here": "从这里开始", "Begin": "起点", "Behind": "落后", "Body": "消息体", "Born": "产生",
  "Broker": "Broker", "Brokers": "Broker", "Bytes per second": "每秒字节数", "Cancel it": "撤回", "Cancel": "取消", "Change": "修改", "Choose {name}": "选择 {name}", "Client": "客户端",
  "Close the connection of {name}? Its client may come again.": "关闭 {name} 的连接？客户端可能会重新连接。", "Close": "关闭", "Cluster": "集群", "Connections": "连接", "Consumed per second": "每秒消费",
  "Consumed up to": "已消费到", "Consumer groups": "消费组", "Count": "次数", "Create": "创建", "Created": "创建时间", "Dark theme": "深色主题", "Data": "数据", "Dead letters": "死信", "Dead": "已失效", "Delayed messages": "延迟消息", "Delayed": "延迟消息",
  "Delete all messages of {name}?": "删除 {name} 的全部消息？", "Delete all messages of {n} topics?": "删除 {n} 个主题的全部消息？", "Delete {name} and its positions?": "删除 {name} 及其消费位点？", "Delete {name} with all its messages?": "删除 {name} 及其全部消息？",
  "Delete {n} topics with all their messages?": "删除 {n} 个主题及其全部消息？", "Delete {n}": "删除 {n} 个", "Delete": "删除", "Deliver at": "投递时间", "Deliveries": "投递次数", "Died": "死亡时间", "Disk": "磁盘", "Due": "到期",
  "Each with where its value comes from.": "每一项都注明取值来源。", "Edit and send…": "编辑后发送…", "Empty {n}": "清空 {n} 个", "Empty": "空", "Encoding": "编码", "End": "终点", "Epoch": "纪元",
  "Every topic is a table. Spark reads and writes topics, and keeps lake tables fresh.": "每个主题都是一张表。Spark 读写主题，并保持湖表最新。", "Fates": "去向", "Flags": "标志", "Folder": "目录", "Followers connect to": "从节点连接到", "Followers": "从节点", "From": "来自",
  "Go to topic, group or message id…": "跳到主题、消费组或消息 ID…", "Group": "消费组", "Groups that are furthest behind": "积压最多的消费组", "Groups with dead letters": "有死信的消费组", "Groups": "消费组", "Half message": "半消息", "How the body is shown": "消息体的显示方式", "Id": "ID",
  "In flight": "处理中", "In per second": "每秒写入", "In time": "时间差", "In": "还剩", "It has no live members.": "没有在线成员。", "It has no position yet.": "还没有消费位点。", "It is changed.": "已修改。", "It is closed.": "已关闭。", "It is deleted.": "已删除。", "It is empty.": "已清空。", "It is moved.": "已移动。", "It is taken back.": "已撤回。",
  "It lasts until the broker is restarted.": "重启 broker 后失效。", "Its producer will be asked again.": "将重新询问其生产者。", "Keep a lake table of a topic:": "为主题维护一张湖表：", "Kept": "保留", "Key": "键", "Keys": "键", "Kind": "类型", "Lag over time": "积压变化", "Lag": "积压", "Lake and Spark": "数据湖与 Spark", "Language": "语言", "Last message": "最后一条消息", "Last": "最近", "Level": "级别",
  "Light theme": "浅色主题", "Log offset": "日志偏移", "Log": "日志", "Looking consumes nothing: the log keeps every message until its time is over.": "查看不会消费：在过期之前，日志保留每一条消息。", "Loop held": "事件循环被占用", "Meaning": "含义",
  "Members subscribe differently in: {groups}": "成员订阅不一致的消费组：{groups}", "Members subscribe differently: messages that only others want are passed over.": "成员订阅不一致：只有其他成员想要的消息会被跳过。", "Members": "成员", "Memory": "内存", "Menu": "菜单", "Message": "消息",
  "Messages are refused: {why}": "拒绝写入消息：{why}", "Messages per second": "每秒消息数", "Messages that were tried as often as their group allows, or that a consumer gave up.": "重试次数用尽，或被消费者放弃的消息。", "Messages": "消息", "Move {name}": "移动 {name}", "Move": "移动", "Move…": "重置位点…",
  "Name servers": "名字服务器", "Name": "名称", "New group": "新建消费组", "New topic": "新建主题", "Next": "下一页", "No Spark is connected now.": "目前没有 Spark 连接。", "No client traced it: when it was sent and delivered is not known.": "没有客户端记录它的轨迹：发送和投递时间未知。", "No dead letters.": "没有死信。", "No group is called so.": "没有这样的消费组。",
  "No message has died.": "没有死信。", "No message is like that.": "没有这样的消息。", "No name server is known.": "没有配置名字服务器。", "No topic is called so.": "没有这样的主题。", "Nobody consumes it.": "没有人消费它。", "Nobody follows this node.": "没有从节点。", "Nobody is behind.": "没有积压。", "Node": "节点", "Nodes": "节点", "Not dealt with": "未处理", "Not flushed": "未刷盘", "Not stored": "写入失败",
  "Nothing changes.": "没有变化。", "Nothing here.": "这里什么都没有。", "Nothing waits.": "没有等待中的消息。", "OK": "确定", "Offset": "偏移", "Oldest message": "最早的消息", "Only the beginning is shown.": "只显示开头部分。", "Open for": "已打开", "Order": "排序", "Out per second": "每秒读出", "Overview": "总览", "Parts of the topic": "主题的各部分", "Permission": "权限", "Place": "位置", "Ports": "端口", "Position": "位点",
  "Previous": "上一页", "Processor time": "处理器时间", "Producer": "生产者", "Progress": "进度", "Properties": "属性", "Protocol": "协议", "Queue": "队列", "Queues": "队列", "Ready-made jobs:": "现成的作业：", "Replicated": "有副本", "SQL-92 condition": "SQL-92 条件", "Save": "保存", "Search": "搜索", "Send a message": "发送消息", "Send again…": "再次发送…", "Send all again": "全部重发", "Send now": "立即发送", "Send {n} again": "重发 {n} 条", "Send": "发送", "Sending again": "正在重发", "Sent": "已发送",
  "Setting": "设置", "Settings": "设置", "Show": "显示", "Since": "自", "Size": "大小", "Skip to content": "跳到内容", "Spark connections": "Spark 连接", "Stable": "稳定", "State": "状态", "Steps": "步骤", "Store": "存储", "Stored": "存储时间", "Subscriptions": "订阅", "Tags": "标签", "Text": "文本", "The message is sent.": "消息已发送。", "The message is too large for that.": "消息太大。", "There are none.": "没有。", "There is no such page.": "没有这个页面。",
  "They stay in the log, but nobody will see them here.": "它们仍在日志里，但不再显示在这里。", "This message will never be delivered.": "这条消息将不会被投递。", "This node": "本节点", "Those that are due first.": "按到期时间排序。", "Time limit": "时限", "Time": "时间", "Times": "耗时", "To": "到", "Topic {name} is there.": "主题 {name} 已创建。", "Topic": "主题", "Topics": "主题", "Trace": "轨迹", "Transactional id": "事务 ID", "Transactions": "事务", "Tried again": "重试次数", "Tries before a message is given up": "放弃前的重试次数", "Tries": "次数",
  "Unique key": "唯一键", "Up for": "已运行", "Value": "值", "Wait for their time": "等待到期", "Way": "方式", "What happened to one message, from its birth to every consumer.": "一条消息从产生到每个消费者的经历。", "What it has written will never be seen.": "它写入的内容将永远不可见。", "What": "项目", "Why": "原因",
  "a time": "某个时间", "address, client or group": "地址、客户端或消费组", "all": "全部", "also those that were dealt with": "包括已处理的", "any": "任意", "append": "追加", "behind": "落后", "between spaces": "以空格分隔", "born": "产生", "by lag": "按积压", "by name": "按名称", "can change now": "可在线修改", "confirm": "确认", "consumed": "已消费", "dead letters": "死信", "dead": "死信", "delayed": "延迟", "delivered": "已投递", "disk {percent} % used": "磁盘已用 {percent} %", "does not read": "不读取", "empty: now": "留空则立即", "failed": "失败", "flush": "刷盘",
  "given up": "被放弃", "id of a message": "消息 ID", "id or unique key": "ID 或唯一键", "if it was not traced": "若没有轨迹记录", "in sync": "同步", "in": "写入", "it waits for its time": "等待到期", "lag {n}": "积压 {n}", "lag": "积压", "master": "主", "no": "否", "none": "无", "normal": "普通", "not the default": "非默认值", "now": "现在", "one per line, name=value": "每行一个，名称=值", "or message id": "或消息 ID", "ordered": "有序", "out": "读出", "part of a name or meaning": "名称或含义的一部分", "part of a name": "名称的一部分",
  "prepared": "已预备", "read and write": "读写", "read": "读", "recalled": "已撤回", "refuses messages": "拒绝写入", "retried": "已重试", "retry {n}": "第 {n} 次重试", "retry": "重试", "sent again": "已重发", "sent back": "退回", "sent": "已发送", "slave": "从", "stored": "已存储", "system": "系统", "text": "文本", "the end: skip all": "末尾：全部跳过", "the oldest message": "最早的消息", "this one": "本机", "took {n} ms": "耗时 {n} 毫秒", "transaction ended": "事务结束", "tried too often": "重试用尽", "write": "写", "yes": "是",
  "(default)": "（默认）", "Bind": "绑定", "Bind…": "绑定…", "Bindings": "绑定", "Arguments": "参数", "Consumers": "消费者", "Declared by RabbitMQ's clients; durable ones are topics, too.": "由 RabbitMQ 客户端声明；持久的队列同时也是主题。", "Delete {name} and its bindings?": "删除 {name} 及其绑定？", "Exchange": "交换机", "Exchanges": "交换机", "Features": "特性", "Headers": "消息头", "It would go nowhere.": "不会到达任何队列。", "It would go to: {queues}": "会到达：{queues}", "New exchange": "新建交换机", "New queue": "新建队列", "No queue is called so.": "没有这样的队列。", "Ready": "就绪", "Routing key": "路由键", "Simulate": "模拟", "Unacknowledged": "未确认", "Unbind": "解绑", "Vhost": "虚拟主机", "Where would this go?": "它会去哪里？", "Work queues": "工作队列", "auto-delete": "自动删除", "durable": "持久", "exchange": "交换机", "exclusive": "独占", "internal": "内部", "queue": "队列", "the default exchange": "默认交换机", "topic": "主题", "has yet to come to it": "尚未到达", "is past it": "已越过", "{n} files open": "{n} 个打开的文件", "{n} in all": "共 {n}", "{n} looked at": "查看了 {n} 条", "{n} messages were sent again.": "已重发 {n} 条消息。", "{n} messages will be read again.": "{n} 条消息将被重新读取。", "{n} messages will be skipped.": "{n} 条消息将被跳过。", "{n} messages": "{n} 条消息", "{n} stalls": "{n} 次卡顿", "{size}, no text": "{size}，非文本",
};

let chosen = null;

export function language() {
  if (chosen === null) {
    try { chosen = localStorage.getItem("onelog-language"); } catch { /* Then the browser's. */ }
    chosen = chosen || (navigator.language.startsWith("zh") ? "zh-CN" : "en");
  }
  return chosen;
}

export function choose(name) {
  chosen = name;
  document.documentElement.lang = name;
  try { localStorage.setItem("onelog-language", name); } catch { /* It lasts as long as the page. */ }
}

/** A text in the chosen language; {names} are replaced by values. */
export function t(text, values = {}) {
  const found = language() === "zh-CN" ? (ZH[text] ?? text) : text;
  return found.replace(/\{(\w+)\}/g, (all, name) => (name in values ? String(values[name]) : all));
}
