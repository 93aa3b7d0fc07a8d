package samples

import (
	"iter"
	"strconv"
	"time"
)

// AccountsDefault is the number of accounts the demo and the benchmarks use.
const AccountsDefault = 10_000

// accountsSeed is the demo's: its rows are the same everywhere.
const accountsSeed source = 20260101

// Accounts generates events of bank accounts, each of about 200 bytes of data:
// opened first, then deposited and withdrawn, a few closed and opened again.
func Accounts(events, accounts int) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		g := accountGenerator{source: accountsSeed, accounts: make([]account, max(accounts, 1)), clock: samplesStart}
		for i := range events {
			if !yield(g.event(i)) {
				return
			}
		}
	}
}

var samplesStart = time.Date(2026, 1, 1, 8, 0, 0, 0, time.UTC).UnixMicro()

type account struct {
	open  bool
	cents int64
}

type accountGenerator struct {
	source
	accounts []account
	clock    int64
}

var (
	givenNames = []string{"Ada", "Alan", "Barbara", "Dennis", "Donald", "Edsger", "Frances", "Grace", "Hedy", "John", "Katherine", "Leslie", "Lynn", "Margaret", "Niklaus", "Radia"}
	surnames   = []string{"Allen", "Conway", "Dijkstra", "Hamilton", "Hopper", "Johnson", "Kernighan", "Knuth", "Lamarr", "Lamport", "Liskov", "Lovelace", "Perlman", "Ritchie", "Turing", "Wirth"}
	channels   = []string{"card", "app", "web", "branch", "standing-order"}
	parties    = []string{"Corner Bakery", "City Transport", "Northwind Energy", "Blue Water Utilities", "Old Town Bookshop", "Green Grocer", "Harbour Cinema", "Riverside Clinic"}
)

func (g *accountGenerator) event(i int) Event {
	n := g.below(len(g.accounts))
	a := &g.accounts[n]
	g.clock += int64(1+g.below(2000)) * 1000
	e := Event{
		ID: g.uuid(), AggregateType: "account", AggregateID: "account-" + padded(n, 5),
		Metadata: []byte(`{"source":"samples"}`), OccurredUS: g.clock,
	}
	switch {
	case !a.open:
		a.open = true
		e.Type = "opened"
		e.Data = g.opened(n)
	case g.below(1000) == 0:
		a.open = false
		e.Type = "closed"
		e.Data = g.closed(a.cents)
	case a.cents >= 100 && g.chance(45):
		cents := 1 + int64(g.below(int(a.cents)))
		a.cents -= cents
		e.Type = "withdrawn"
		e.Data = g.moved("counterparty", cents, i)
	default:
		cents := int64(1 + g.below(100_000))
		a.cents += cents
		e.Type = "deposited"
		e.Data = g.moved("payer", cents, i)
	}
	return e
}

func (g *accountGenerator) opened(n int) []byte {
	b := append(make([]byte, 0, 240), `{"owner":"`...)
	b = append(append(append(b, g.pick(givenNames)...), ' '), g.pick(surnames)...)
	b = append(append(b, `","currency":"EUR","product":"current account","branch":"`...), padded(n%97, 4)...)
	b = append(b, `","channel":"`...)
	b = append(b, g.pick(channels)...)
	return append(b, `","terms":{"version":"2025-07","overdraft":"0.00","statement":"monthly","language":"en"}}`...)
}

func (g *accountGenerator) closed(cents int64) []byte {
	b := append(make([]byte, 0, 240), `{"reason":"customer request","paid_out":"`...)
	b = appendCents(b, cents)
	b = append(b, `","channel":"`...)
	b = append(b, g.pick(channels)...)
	return append(b, `","checked_by":["clerk-`+padded(g.below(500), 3)+`","clerk-`+padded(g.below(500), 3)+`"],"note":"all mandates moved to the new bank"}`...)
}

func (g *accountGenerator) moved(party string, cents int64, i int) []byte {
	b := append(make([]byte, 0, 240), `{"amount":"`...)
	b = appendCents(b, cents)
	b = append(b, `","currency":"EUR","channel":"`...)
	b = append(b, g.pick(channels)...)
	b = append(append(append(b, `","`...), party...), `":{"name":"`...)
	b = append(b, g.pick(parties)...)
	b = append(append(b, `","iban":"DE`...), padded(g.below(100_000_000), 20)...)
	b = append(append(b, `"},"reference":"TX-`...), padded(i, 10)...)
	return append(b, `","booked":true}`...)
}

func appendCents(dst []byte, cents int64) []byte {
	dst = strconv.AppendInt(dst, cents/100, 10)
	return append(append(dst, '.'), padded(int(cents%100), 2)...)
}

// padded spells n with leading zeros.
func padded(n, width int) string {
	s := strconv.Itoa(n)
	for len(s) < width {
		s = "0000000000"[:min(width-len(s), 10)] + s
	}
	return s
}

func appendTime(dst []byte, us int64) []byte {
	return time.UnixMicro(us).UTC().AppendFormat(dst, "2006-01-02T15:04:05.000000Z")
}
