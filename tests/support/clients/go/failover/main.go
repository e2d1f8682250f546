// The works of tests/support/clients/failover with franz-go; events.py there has what it prints.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	pause              = 50 * time.Millisecond
	deliveryTimeout    = 60 * time.Second
	transactionTimeout = 60 * time.Second
)

var (
	over     atomic.Bool
	printing sync.Mutex
)

type event struct {
	At    int64  `json:"at"`
	Work  string `json:"work"`
	Ok    []int  `json:"ok,omitempty"`
	Error string `json:"error,omitempty"`
	Anew  bool   `json:"anew,omitempty"`
}

func saw(what event) {
	what.At = time.Now().UnixMilli()
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

// name is Kafka's name of an error, or the last one in the chain of those that have none.
func name(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err.Error()
}

func client(bootstrap []string, options ...kgo.Opt) *kgo.Client {
	logger := kgo.BasicLogger(os.Stderr, kgo.LogLevelDebug, nil)
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(bootstrap...),
		kgo.WithLogger(logger), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		panic(err)
	}
	return made
}

func record(topic string, partition int32, value int) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: partition, Value: []byte(strconv.Itoa(value))}
}

// produce writes one record after the other, each acknowledged by all replicas.
func produce(bootstrap []string, topic string) {
	value := 0
	for !over.Load() {
		made := client(bootstrap, kgo.RecordDeliveryTimeout(deliveryTimeout))
		for ; !over.Load(); value++ {
			err := made.ProduceSync(context.Background(), record(topic, 0, value)).FirstErr()
			if err != nil {
				saw(event{Work: "produce", Error: name(err), Anew: true})
				value++
				break
			}
			saw(event{Work: "produce", Ok: []int{value}})
			time.Sleep(pause)
		}
		made.Close()
	}
}

// transact does one transaction after the other, each with a record in two partitions.
func transact(bootstrap []string, topic string, id string) {
	value := 0
	for !over.Load() {
		made := client(bootstrap, kgo.TransactionalID(id),
			kgo.TransactionTimeout(transactionTimeout))
		for ; !over.Load(); value++ {
			if err := commit(made, topic, value); err != nil {
				saw(event{Work: "transact", Error: name(err), Anew: true})
				value++
				break
			}
			time.Sleep(pause)
		}
		made.Close()
	}
}

// commit does one transaction; its error is one that the client cannot go on after.
func commit(made *kgo.Client, topic string, value int) error {
	ctx := context.Background()
	if err := made.BeginTransaction(); err != nil {
		return err
	}
	sent := made.ProduceSync(ctx, record(topic, 0, value), record(topic, 1, value)).FirstErr()
	if sent == nil {
		sent = made.EndTransaction(ctx, kgo.TryCommit)
		if sent == nil {
			saw(event{Work: "transact", Ok: []int{value}})
			return nil
		}
	}
	saw(event{Work: "transact", Error: name(sent)})
	return made.EndTransaction(ctx, kgo.TryAbort)
}

// consume reads what produce writes, from the first record.
func consume(bootstrap []string, topic string) {
	made := client(bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {0: kgo.NewOffset().AtStart()},
	}))
	defer made.Close()
	for !over.Load() {
		if values := poll(made, "consume"); len(values) > 0 {
			saw(event{Work: "consume", Ok: values})
		}
	}
}

// member does the same as the only member of a group, which commits what it was given.
func member(bootstrap []string, topic string, group string) {
	made := client(bootstrap, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit())
	defer made.Close()
	for !over.Load() {
		values := poll(made, "group")
		if len(values) == 0 {
			continue
		}
		if err := made.CommitUncommittedOffsets(context.Background()); err != nil {
			saw(event{Work: "group", Error: name(err)})
		} else {
			saw(event{Work: "group", Ok: values})
		}
	}
}

func poll(made *kgo.Client, work string) []int {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	fetches := made.PollFetches(ctx)
	fetches.EachError(func(_ string, _ int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) {
			saw(event{Work: work, Error: name(err)})
		}
	})
	var values []int
	fetches.EachRecord(func(each *kgo.Record) {
		value, err := strconv.Atoi(string(each.Value))
		if err != nil {
			panic(err)
		}
		values = append(values, value)
	})
	return values
}

func main() {
	if len(os.Args) != 6 {
		panic("bootstrap servers, two topics, a group and a transactional id are wanted")
	}
	bootstrap := strings.Split(os.Args[1], ",")
	produced, transacted, group, id := os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	var working sync.WaitGroup
	for _, work := range []func(){
		func() { produce(bootstrap, produced) },
		func() { transact(bootstrap, transacted, id) },
		func() { consume(bootstrap, produced) },
		func() { member(bootstrap, produced, group) },
	} {
		working.Add(1)
		go func() {
			defer working.Done()
			work()
		}()
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		panic(err)
	}
	over.Store(true)
	ended := make(chan struct{})
	go func() {
		working.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
	}
}
