package reader

import (
	"context"
	"fmt"
	"sort"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// KeyTeller asks a guest for the keys of messages (key rule "function"). It
// calls each for every message in order; done counts the messages told. A
// problem is the reason why message number done cannot be told.
type KeyTeller interface {
	Tell(ctx context.Context, messages []abi.Entry, each func(index int, keys [][]byte)) (done int, problem string, err error)
}

// NoLane is the lane of partitions that are not the feed's: what belongs to
// them is passed over.
const NoLane = -1

// FeedConfig is what a feed needs to know of its consumer.
type FeedConfig struct {
	Topic       int // index in the consumer's topics
	Consumer    *abi.Consumer
	Lanes       int     // how many there are
	Lane        []int   // by partition, all N: the lane that has it, or NoLane
	Start       []int64 // by partition: its checkpoint; what is at or below it is done
	Incarnation uint64  // the one the checkpoints were read under
	Teller      KeyTeller
	// Skips are the positions of messages that are passed over for every key.
	Skips map[int64]struct{}
	// Replayed entries are told from others, and left out where the consumer says so.
	Replayed Replayed
	// Bounded feeds end at Until, and then wait for their context to end.
	Bounded bool
	Until   int64
}

// Feed follows one topic for one consumer.
type Feed struct {
	source *Source
	cfg    FeedConfig
	keys   *resolver
	push   func(ctx context.Context, lane int, s Slice) error
	retry  func(ctx context.Context, err error) error

	out     []Slice
	told    map[int][]key // by index in the page, where the guest tells
	asked   []abi.Entry
	askedAt []int
}

// NewFeed makes a feed. It gives slices to push, which blocks while a lane is
// full, and asks retry what to do about a failed read: nil means once more.
func NewFeed(source *Source, cfg FeedConfig,
	push func(ctx context.Context, lane int, s Slice) error,
	retry func(ctx context.Context, err error) error,
) (*Feed, error) {
	keys, err := newResolver(source.topic, cfg.Consumer)
	if err != nil {
		return nil, err
	}
	return &Feed{
		source: source, cfg: cfg, keys: keys, push: push, retry: retry,
		out: make([]Slice, cfg.Lanes),
	}, nil
}

// UnresolvedError is a message whose keys cannot be told at all. The lanes have
// been given everything before it, and nothing of it or behind it: no
// checkpoint passes it (P4).
type UnresolvedError struct {
	Topic  string
	Event  store.Event
	Reason string
}

func (e *UnresolvedError) Error() string {
	return fmt.Sprintf("the keys of message %d of %s (%s) cannot be told: %s", e.Event.Position, e.Topic, e.Event.Type, e.Reason)
}

// MissingHistoryError is a topic whose start is past what the consumer has to
// read next.
type MissingHistoryError struct {
	Topic string
	After int64
	Start int64
}

func (e *MissingHistoryError) Error() string {
	return fmt.Sprintf("everything up to %d of topic %s was deleted, but only %d is applied", e.Start, e.Topic, e.After)
}

// Run feeds the lanes with what follows a position, until ctx ends or it meets
// an error: one of push or retry, *UnresolvedError, *MissingHistoryError, or
// store.ErrIncarnation when what it read before may no longer be true.
func (f *Feed) Run(ctx context.Context, after int64) error {
	follower := f.source.follow(f.needs())
	defer follower.leave()
	for {
		if f.cfg.Bounded && after >= f.cfg.Until {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		page, err := follower.next(ctx, after)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := f.retry(ctx, err); err != nil {
				return err
			}
			continue
		}
		if page.Incarnation != f.cfg.Incarnation {
			return store.ErrIncarnation
		}
		// The start is read no earlier than the page, so a deletion between
		// the two cannot pass unnoticed.
		if page.Start > after {
			return &MissingHistoryError{Topic: page.Topic, After: after, Start: page.Start}
		}
		if f.cfg.Bounded {
			page = upTo(page, f.cfg.Until)
		}
		if err := f.feed(ctx, page); err != nil {
			return err
		}
		after = page.To
	}
}

// upTo is the part of a page up to a position, as if the topic ended there.
func upTo(p *store.Page, until int64) *store.Page {
	part := *p
	part.End = min(p.End, until)
	if p.To > until {
		n := sort.Search(len(p.Events), func(i int) bool { return p.Events[i].Position > until })
		part.To, part.Events = until, p.Events[:n]
	}
	return &part
}

// needs tells which stored partitions have the feed's messages: its own where a
// message's key is its stream's id, since an event is stored by that; all where
// keys are computed.
func (f *Feed) needs() reach {
	if !f.keys.native() {
		return nil
	}
	own := make(reach, len(f.cfg.Lane))
	for p, l := range f.cfg.Lane {
		own[p] = l != NoLane
	}
	return own.whole()
}

// feed gives the lanes their slices of one page.
func (f *Feed) feed(ctx context.Context, page *store.Page) error {
	stop, problem, err := f.tell(ctx, page)
	if err != nil {
		return err
	}
	for l := range f.out {
		// As many as the lane had last time is a good guess.
		f.out[l] = Slice{
			Topic: f.cfg.Topic, From: page.From, To: page.To, End: page.End, Incarnation: page.Incarnation,
			Entries: make([]Entry, 0, len(f.out[l].Entries)),
		}
	}
	for i := range page.Events[:stop] {
		event := &page.Events[i]
		m := f.match(event)
		if !m.ok {
			continue
		}
		if reason := f.keys.resolve(event, m, f.told[i]); reason != "" {
			stop, problem = i, reason
			break
		}
		f.deal(event, m)
	}
	var unresolved error
	if problem != "" {
		event := page.Events[stop]
		for l := range f.out {
			f.out[l].To = event.Position - 1
		}
		unresolved = &UnresolvedError{Topic: page.Topic, Event: event, Reason: problem}
	}
	for l := range f.out {
		if f.out[l].To == f.out[l].From {
			continue
		}
		if err := f.push(ctx, l, f.out[l]); err != nil {
			return err
		}
	}
	return unresolved
}

// match finds the input that takes a message, if any is to.
func (f *Feed) match(event *store.Event) match {
	if _, skipped := f.cfg.Skips[event.Position]; skipped {
		return match{}
	}
	return f.keys.match(event)
}

// deal hands a message to the lanes of its keys.
func (f *Feed) deal(event *store.Event, m match) {
	for _, k := range f.keys.keys {
		p := partition.Of(k.key, len(f.cfg.Lane))
		l := f.cfg.Lane[p]
		if l == NoLane || event.Position <= f.cfg.Start[p] {
			continue
		}
		replay := f.cfg.Replayed.Has(event.Position, p, k.key)
		if replay && f.cfg.Consumer.IgnoreOnReplay {
			continue
		}
		s := &f.out[l]
		s.Entries = append(s.Entries, Entry{
			Event: event, Key: k.key, StandIn: k.standIn, Partition: uint16(p), Input: m.input, Type: m.typ, Replay: replay,
		})
		s.Bytes += messageBytes(event)
	}
}

// tell asks the guest for the keys of those messages of a page whose rule says
// so. What it tells is good up to the page's message number stop; with a
// problem, that one cannot be told.
func (f *Feed) tell(ctx context.Context, page *store.Page) (stop int, problem string, err error) {
	if f.cfg.Teller == nil {
		return len(page.Events), "", nil
	}
	f.asked, f.askedAt = f.asked[:0], f.askedAt[:0]
	for i := range page.Events {
		m := f.match(&page.Events[i])
		if !m.ok || f.keys.rule(m) != abi.KeyFunction {
			continue
		}
		var entry abi.Entry
		(&Entry{Event: &page.Events[i], Input: m.input, Type: m.typ}).ABI(&entry)
		f.asked, f.askedAt = append(f.asked, entry), append(f.askedAt, i)
	}
	for {
		f.told = make(map[int][]key)
		if len(f.asked) == 0 {
			return len(page.Events), "", nil
		}
		done, problem, err := f.cfg.Teller.Tell(ctx, f.asked, func(asked int, keys [][]byte) {
			i := f.askedAt[asked]
			for _, k := range keys {
				s, ok := abi.StorableKey(k)
				f.told[i] = append(f.told[i], key{s, !ok})
			}
		})
		switch {
		case err != nil && ctx.Err() != nil:
			return 0, "", context.Cause(ctx)
		case err != nil:
			if err := f.retry(ctx, err); err != nil {
				return 0, "", err
			}
		case problem != "":
			return f.askedAt[done], problem, nil
		default:
			return len(page.Events), "", nil
		}
	}
}
