// What RabbitMQ's own Go client does with a broker: argument 1 is its address, argument 2 a name,
// and argument 3 how many goroutines share the connection.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const rounds = 300

func must(err error, what string) {
	if err != nil {
		fmt.Printf("%s: %v\n", what, err)
		os.Exit(1)
	}
}

// A channel that the broker closes for an unknown tag is closed by the client at the same moment.
func crossing(connection *amqp.Connection) {
	for round := 0; round < rounds; round++ {
		channel, err := connection.Channel()
		must(err, fmt.Sprintf("a channel of round %d", round))
		_ = channel.Ack(99, false)
		if round%3 == 1 {
			time.Sleep(time.Duration(round*7%300) * time.Microsecond)
		}
		_ = channel.Close()
	}
}

// Deliveries, confirms and a global prefetch on one channel, as programs use them.
func ordinary(connection *amqp.Connection, name string) {
	channel, err := connection.Channel()
	must(err, "a channel")
	must(channel.Confirm(false), "confirms")
	queue, err := channel.QueueDeclare(name, true, false, false, false, nil)
	must(err, "a queue")
	must(channel.Qos(5, 0, true), "a global prefetch")
	deliveries, err := channel.Consume(queue.Name, "", false, false, false, false, nil)
	must(err, "a consumer")
	for number := 0; number < 100; number++ {
		confirm, err := channel.PublishWithDeferredConfirm("", queue.Name, true, false,
			amqp.Publishing{Body: []byte(fmt.Sprint(number)), DeliveryMode: amqp.Persistent})
		must(err, "a message")
		if number%10 == 9 && !confirm.Wait() {
			must(fmt.Errorf("message %d was refused", number), "confirms")
		}
	}
	for number := 0; number < 100; number++ {
		select {
		case delivery := <-deliveries:
			if string(delivery.Body) != fmt.Sprint(number) {
				must(fmt.Errorf("%s came in place of %d", delivery.Body, number), "order")
			}
			must(delivery.Ack(false), "an acknowledgement")
		case <-time.After(20 * time.Second):
			must(fmt.Errorf("message %d did not come", number), "deliveries")
		}
	}
	_, err = channel.QueueDelete(queue.Name, false, false, false)
	must(err, "the end of the queue")
	must(channel.Close(), "the end of the channel")
}

func main() {
	connection, err := amqp.Dial(os.Args[1])
	must(err, "a connection")
	ended := connection.NotifyClose(make(chan *amqp.Error, 1))
	var all sync.WaitGroup
	workers, err := strconv.Atoi(os.Args[3])
	must(err, "how many goroutines")
	for worker := 0; worker < workers; worker++ {
		all.Add(1)
		go func() {
			defer all.Done()
			crossing(connection)
		}()
	}
	all.Wait()
	ordinary(connection, os.Args[2])
	select {
	case reason := <-ended:
		must(fmt.Errorf("%v", reason), "the connection ended")
	default:
	}
	must(connection.Close(), "the end of the connection")
	fmt.Println("done")
}
