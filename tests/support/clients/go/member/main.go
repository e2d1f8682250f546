// A member of a consumer group of KIP-848, with franz-go: ServerSideBalancer.
//
//	member BOOTSTRAP GROUP SOURCE [TARGET TRANSACTIONAL_ID]
//
// It prints JSON as tests/support/clients/member.py does: "assigned", "got", "refused" and
// "committed", or with a TARGET, where it copies records in transactions that carry their offsets,
// "committed" or "aborted". If it reads "stall", it prints "stalled" in the middle of its next transaction, with all
// records sent, and waits there for "go". If it reads "close", it leaves the group and prints
// "closed". After an error that the library cannot go on from, it prints "anew", and is a new member.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	pollTime = 100 * time.Millisecond
	atOnce   = 20
)

type event struct {
	Name       string     `json:"name"`
	Partitions []int32    `json:"partitions,omitempty"`
	Records    [][2]int64 `json:"records,omitempty"`
	Why        string     `json:"why,omitempty"`
}

var (
	printing sync.Mutex
	ordering sync.Mutex
	ordered  = sync.NewCond(&ordering)
	order    string
	ctx      = context.Background()
)

func tell(what event) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

func listen() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		ordering.Lock()
		order = lines.Text()
		ordered.Broadcast()
		ordering.Unlock()
	}
}

func isOver() bool {
	ordering.Lock()
	defer ordering.Unlock()
	return order == "close"
}

// hold waits in the middle of a transaction, if that was ordered.
func hold() {
	ordering.Lock()
	defer ordering.Unlock()
	if order != "stall" {
		return
	}
	tell(event{Name: "stalled"})
	for order == "stall" {
		ordered.Wait()
	}
}

// share tells which partitions the member has now.
type share struct {
	sync.Mutex
	partitions []int32
}

func (s *share) add(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
	s.Lock()
	defer s.Unlock()
	for _, each := range topics {
		s.partitions = append(s.partitions, each...)
	}
	slices.Sort(s.partitions)
	tell(event{Name: "assigned", Partitions: s.partitions})
}

func (s *share) remove(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
	s.Lock()
	defer s.Unlock()
	for _, gone := range topics {
		s.partitions = slices.DeleteFunc(s.partitions, func(each int32) bool {
			return slices.Contains(gone, each)
		})
	}
	tell(event{Name: "assigned", Partitions: s.partitions})
}

func options(bootstrap, group, source string, more ...kgo.Opt) []kgo.Opt {
	owned := &share{}
	return append(more,
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelInfo, nil)),
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(source), kgo.ServerSideBalancer(),
		kgo.Balancers(kgo.StickyBalancer()),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.OnPartitionsAssigned(owned.add), kgo.OnPartitionsRevoked(owned.remove),
		kgo.OnPartitionsLost(owned.remove))
}

// got has the records of a poll; none when a broker is away, which the library tells as an error.
func got(poll func(context.Context, int) kgo.Fetches) []*kgo.Record {
	limited, cancel := context.WithTimeout(ctx, pollTime)
	defer cancel()
	fetches := poll(limited, atOnce)
	fetches.EachError(func(_ string, _ int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) {
			fmt.Fprintln(os.Stderr, "poll:", err)
		}
	})
	return fetches.Records()
}

func places(records []*kgo.Record) [][2]int64 {
	var made [][2]int64
	for _, each := range records {
		made = append(made, [2]int64{int64(each.Partition), each.Offset})
	}
	return made
}

// read commits what it got, however long the broker is away.
func read(made *kgo.Client) {
	for !isOver() {
		records := got(made.PollRecords)
		if len(records) == 0 {
			continue
		}
		tell(event{Name: "got", Records: places(records)})
		for err := made.CommitRecords(ctx, records...); err != nil && !isOver(); {
			tell(event{Name: "refused", Why: err.Error()})
			err = made.CommitRecords(ctx, records...)
		}
		tell(event{Name: "committed", Records: places(records)})
	}
}

// copyAll does one transaction for each poll; its error is one that the session cannot go on after.
func copyAll(session *kgo.GroupTransactSession, target string) error {
	for !isOver() {
		records := got(session.PollRecords)
		if len(records) == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		var copies []*kgo.Record
		for _, each := range records {
			copies = append(copies, &kgo.Record{Topic: target, Key: each.Key, Value: each.Value})
		}
		sent := session.ProduceSync(ctx, copies...).FirstErr()
		hold()
		committed, err := session.End(ctx, kgo.TransactionEndTry(sent == nil))
		if err != nil {
			return err
		}
		if committed {
			tell(event{Name: "committed", Records: places(records)})
		} else {
			tell(event{Name: "aborted", Records: places(records)})
		}
	}
	return nil
}

// live is one member from its join to its end.
func live(words []string) error {
	bootstrap, group, source := words[0], words[1], words[2]
	if len(words) == 3 {
		made, err := kgo.NewClient(options(bootstrap, group, source, kgo.DisableAutoCommit())...)
		if err != nil {
			panic(err)
		}
		defer made.Close()
		read(made)
		return nil
	}
	session, err := kgo.NewGroupTransactSession(
		options(bootstrap, group, source, kgo.TransactionalID(words[4]))...)
	if err != nil {
		panic(err)
	}
	defer session.Close()
	return copyAll(session, words[3])
}

func main() {
	go listen()
	for !isOver() {
		if err := live(os.Args[1:]); err != nil {
			tell(event{Name: "anew", Why: err.Error()})
		}
	}
	tell(event{Name: "closed"})
}
