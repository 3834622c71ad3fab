// Sends and receives messages of every type with RocketMQ's own Go client, and prints what came as
// JSON lines. The same steps as the Java program's.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const count = 20

var endpoint string

func must[T any](made T, err error) T {
	check(err)
	return made
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tell(name string, got []string) {
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"name": name, "got": got}))
}

func settings(group string) *rmq.Config {
	return &rmq.Config{
		Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{},
	}
}

func producer(topic string, options ...rmq.ProducerOption) rmq.Producer {
	made := must(rmq.NewProducer(settings(""), append(options, rmq.WithTopics(topic))...))
	check(made.Start())
	return made
}

func send(made rmq.Producer, message *rmq.Message) *rmq.SendReceipt {
	return must(made.Send(context.Background(), message))[0]
}

func simple(topic string) rmq.SimpleConsumer {
	made := must(rmq.NewSimpleConsumer(
		settings(topic+"-group"),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
	))
	check(made.Start())
	return made
}

func take(made rmq.SimpleConsumer, wanted int) []string {
	got := []string{}
	until := time.Now().Add(60 * time.Second)
	for len(got) < wanted && time.Now().Before(until) {
		// Finding nothing is an error there.
		views, _ := made.Receive(context.Background(), 16, 30*time.Second)
		for _, view := range views {
			got = append(got, fmt.Sprintf("%s %d", view.GetBody(), view.GetDeliveryAttempt()))
			check(made.Ack(context.Background(), view))
		}
	}
	return got
}

func push(topic string, filter *rmq.FilterExpression, show func(*rmq.MessageView) string) []string {
	var lock sync.Mutex
	got := []string{}
	enough := make(chan bool, 1)
	made := must(rmq.NewPushConsumer(
		settings(topic+"-group"),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
				lock.Lock()
				defer lock.Unlock()
				got = append(got, show(view))
				if len(got) == count {
					enough <- true
				}
				return rmq.SUCCESS
			},
		}),
	))
	check(made.Start())
	select {
	case <-enough:
	case <-time.After(60 * time.Second):
	}
	check(made.GracefulStop())
	lock.Lock()
	defer lock.Unlock()
	return got
}

func normal(topic string) {
	made := producer(topic)
	for i := 0; i < count; i++ {
		message := &rmq.Message{Topic: topic, Body: []byte(fmt.Sprintf("n%d", i))}
		message.SetTag("t")
		message.SetKeys(fmt.Sprintf("k%d", i))
		message.AddProperty("p", "v")
		send(made, message)
	}
	check(made.GracefulStop())
	got := push(topic, rmq.NewFilterExpression("t"), func(view *rmq.MessageView) string {
		keys := strings.Join(view.GetKeys(), ",")
		return fmt.Sprintf("%s %s %s %s", view.GetBody(), *view.GetTag(), keys, view.GetProperties()["p"])
	})
	sort.Strings(got)
	tell("normal", got)
}

func fifo(topic string) {
	made := producer(topic)
	for i := 0; i < count; i++ {
		message := &rmq.Message{Topic: topic, Body: []byte(fmt.Sprintf("f%d", i))}
		message.SetMessageGroup("one")
		send(made, message)
	}
	check(made.GracefulStop())
	tell("fifo", push(topic, rmq.SUB_ALL, func(view *rmq.MessageView) string {
		return string(view.GetBody())
	}))
}

func delay(topic string) {
	made, consumer := producer(topic), simple(topic)
	now := time.Now()
	message := &rmq.Message{Topic: topic, Body: []byte("late")}
	message.SetDelayTimestamp(now.Add(4 * time.Second))
	send(made, message)
	got := take(consumer, 1)
	if time.Since(now) >= 3*time.Second {
		got = append(got, "in time")
	}
	tell("delay", got)
	check(consumer.GracefulStop())
	check(made.GracefulStop())
}

func transaction(topic string) {
	made := producer(topic, rmq.WithTransactionChecker(&rmq.TransactionChecker{
		Check: func(*rmq.MessageView) rmq.TransactionResolution { return rmq.COMMIT },
	}))
	consumer := simple(topic)
	half := func(body string) rmq.Transaction {
		begun := made.BeginTransaction()
		message := &rmq.Message{Topic: topic, Body: []byte(body)}
		must(made.SendWithTransaction(context.Background(), message, begun))
		return begun
	}
	check(half("committed").Commit())
	check(half("rolled back").RollBack())
	half("asked about")
	got := take(consumer, 2)
	sort.Strings(got)
	tell("transaction", got)
	check(consumer.GracefulStop())
	check(made.GracefulStop())
}

func main() {
	os.Setenv("mq.consoleAppender.enabled", "false")
	os.Setenv("rocketmq.client.logRoot", os.Args[3])
	rmq.ResetLogger()
	rmq.EnableSsl = false
	endpoint = os.Args[1]
	normal(os.Args[2] + "-normal")
	fifo(os.Args[2] + "-fifo")
	delay(os.Args[2] + "-delay")
	transaction(os.Args[2] + "-transaction")
}
