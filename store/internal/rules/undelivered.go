package rules

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/projhost/projhost/store"
)

// Reason is the reason of an undelivered message as every engine can keep it: cut
// to its bound, valid UTF-8, without U+0000. It is a guest's text.
func Reason(text string) string {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	text = strings.ReplaceAll(text, "\x00", "\uFFFD")
	if len(text) <= store.UndeliveredReasonMax {
		return text
	}
	n := 0
	for i := range text {
		if n == store.UndeliveredReasonMax {
			return text[:i]
		}
		n++
	}
	return text
}

func knownStatus(s store.UndeliveredStatus) bool {
	switch s {
	case store.StatusFailed, store.StatusWaiting, store.StatusHalted, store.StatusDeadLetterKey, store.StatusDeadLetter:
		return true
	}
	return false
}

// checkUndelivered is the part of [CheckBatch] about messages that were not
// applied. It has statuses be of those that there are: they stand in SQL as they
// are.
func checkUndelivered(b *store.Batch) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("apply %s: %s", b.Consumer, fmt.Sprintf(format, args...))
	}
	leased := func(partition int) bool {
		for _, l := range b.Leases {
			if l.Partition == partition {
				return true
			}
		}
		return false
	}
	for i := range b.Retries {
		r := &b.Retries[i]
		switch {
		case i > 0 && r.ID <= b.Retries[i-1].ID:
			return refuse("retries are not in order of their ids")
		case !leased(r.Partition):
			return refuse("no lease covers the retry of %d, partition %d", r.ID, r.Partition)
		case !knownStatus(r.Status), r.Then != nil && !knownStatus(r.Then.Status):
			return refuse("the retry of %d has a status that there is not", r.ID)
		case r.Line != "" && r.Line != store.StatusWaiting && r.Line != store.StatusDeadLetterKey:
			return refuse("the line behind %d cannot become %s", r.ID, r.Line)
		}
	}
	for i := range b.Records {
		r := &b.Records[i]
		switch {
		case r.Event == nil:
			return refuse("a record of topic %s has no event", r.Topic)
		case !leased(r.Partition):
			return refuse("no lease covers the record of %s, position %d, partition %d", r.Topic, r.Event.Position, r.Partition)
		case !knownStatus(r.Status):
			return refuse("the record of %s, position %d has a status that there is not", r.Topic, r.Event.Position)
		case r.Unresolved != (r.Key == ""):
			return refuse("the record of %s, position %d: a key is missing, or one too many", r.Topic, r.Event.Position)
		case !r.Unresolved && store.CheckIdentifier(r.Key) != "":
			return refuse("the record of %s, position %d: the key %s", r.Topic, r.Event.Position, store.CheckIdentifier(r.Key))
		}
	}
	for _, s := range b.Skips {
		if s.EveryKey != (s.Key == "") {
			return refuse("the skip of %s, position %d: a key is missing, or one too many", s.Topic, s.Position)
		}
	}
	return nil
}
