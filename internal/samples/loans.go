package samples

import (
	"container/heap"
	"iter"
)

// LoansDefault is the size of the loan sample that stands in for a real log.
const LoansDefault = 20_000

const loansSeed source = 20111001

// hotResource works on every application: its child rows are as many as there
// are applications.
const hotResource = "112"

// Loans generates events of loan applications in the shape of a real log of a
// bank: types A_ (application), O_ (offer) and W_ (work), applications
// interleaved in time, a resource in most events, the amount in the first one.
// The end of the sequence cuts applications off that are under way.
func Loans(events int) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		g := loanGenerator{source: loansSeed, arrival: samplesStart, number: 173688}
		for range events {
			if !yield(g.event()) {
				return
			}
		}
	}
}

// step is an event of an application that is still to come.
type step struct {
	typ, transition, resource string
	wait                      int64 // after the step before, in microseconds
}

type application struct {
	id     string
	amount string // of the first event; "" if it names none
	steps  []step
	first  bool
	due    int64
	number int
}

type loanGenerator struct {
	source
	arrival  int64
	number   int
	underWay applications
}

// event takes the earliest step of all applications under way.
func (g *loanGenerator) event() Event {
	for len(g.underWay) == 0 || g.underWay[0].due > g.arrival {
		g.arrive()
	}
	a := g.underWay[0]
	s := a.steps[0]
	e := Event{
		ID: g.uuid(), AggregateType: "loan-application", AggregateID: a.id, Type: s.typ,
		Data: data(a, s), Metadata: []byte(`{"activity_state":"` + s.transition + `"}`), OccurredUS: a.due,
	}
	a.steps, a.first = a.steps[1:], false
	if len(a.steps) == 0 {
		heap.Pop(&g.underWay)
	} else {
		a.due += a.steps[0].wait
		heap.Fix(&g.underWay, 0)
	}
	return e
}

func data(a *application, s step) []byte {
	b := append(make([]byte, 0, 160), '{')
	if s.resource != "" {
		b = append(append(append(b, `"org:resource":"`...), s.resource...), `",`...)
	}
	b = append(append(append(b, `"lifecycle:transition":"`...), s.transition...), '"')
	if a.first {
		b = append(b, `,"case":{"REG_DATE":"`...)
		b = append(appendTime(b, a.due), '"')
		if a.amount != "" {
			b = append(append(append(b, `,"AMOUNT_REQ":"`...), a.amount...), '"')
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// arrive starts the next application with all that will become of it.
func (g *loanGenerator) arrive() {
	g.arrival += int64(60+g.below(1800)) * 1_000_000
	a := &application{id: padded(g.number, 6), first: true, due: g.arrival, number: g.number}
	g.number += 1 + g.below(5)
	if !g.chance(2) {
		a.amount = padded((1+g.below(20))*(1+g.below(10))*500, 1)
	}
	a.steps = g.plan()
	heap.Push(&g.underWay, a)
}

func (g *loanGenerator) plan() []step {
	steps := []step{
		{"A_SUBMITTED", "COMPLETE", hotResource, 0},
		{"A_PARTLYSUBMITTED", "COMPLETE", hotResource, 300_000},
	}
	clerk := g.clerk()
	add := func(typ, transition, resource string, seconds int) {
		steps = append(steps, step{typ, transition, resource, int64(1+g.below(seconds)) * 1_000_000})
	}
	work := func(typ string) {
		add(typ, "SCHEDULE", clerk, 600)
		for range 1 + g.below(4) {
			if g.chance(30) {
				clerk = g.clerk()
			}
			add(typ, "START", g.orNobody(clerk), 86400)
			add(typ, "COMPLETE", g.orNobody(clerk), 1800)
		}
	}
	if g.chance(35) {
		add("A_DECLINED", "COMPLETE", hotResource, 60)
		return steps
	}
	if g.chance(35) {
		work("W_Afhandelen leads")
	}
	add("A_PREACCEPTED", "COMPLETE", clerk, 60)
	work("W_Completeren aanvraag")
	if g.chance(30) {
		add([]string{"A_DECLINED", "A_CANCELLED"}[g.below(2)], "COMPLETE", clerk, 86400)
		return steps
	}
	add("A_ACCEPTED", "COMPLETE", clerk, 600)
	add("A_FINALIZED", "COMPLETE", clerk, 60)
	for offers := 1 + g.below(3); offers > 0; offers-- {
		add("O_SELECTED", "COMPLETE", clerk, 60)
		add("O_CREATED", "COMPLETE", clerk, 2)
		add("O_SENT", "COMPLETE", clerk, 2)
		work("W_Nabellen offertes")
		if offers > 1 {
			add("O_CANCELLED", "COMPLETE", clerk, 86400)
		}
	}
	if g.chance(25) {
		add("A_CANCELLED", "COMPLETE", hotResource, 86400)
		return steps
	}
	add("O_SENT_BACK", "COMPLETE", clerk, 86400)
	work("W_Valideren aanvraag")
	if g.chance(40) {
		work("W_Nabellen incomplete dossiers")
	}
	if g.chance(20) {
		add("O_DECLINED", "COMPLETE", clerk, 3600)
		add("A_DECLINED", "COMPLETE", clerk, 2)
		return steps
	}
	add("O_ACCEPTED", "COMPLETE", clerk, 3600)
	for _, typ := range []string{"A_REGISTERED", "A_APPROVED", "A_ACTIVATED"} {
		add(typ, "COMPLETE", clerk, 2)
	}
	return steps
}

// clerk names one of 60 members of staff, some much busier than others.
func (g *loanGenerator) clerk() string {
	return padded(10_124+17*min(g.below(60), g.below(60)), 5)
}

// orNobody leaves the resource out of some events.
func (g *loanGenerator) orNobody(resource string) string {
	if g.chance(12) {
		return ""
	}
	return resource
}

// applications is a heap by the time of the next step.
type applications []*application

func (a applications) Len() int { return len(a) }

func (a applications) Less(i, j int) bool {
	return a[i].due < a[j].due || a[i].due == a[j].due && a[i].number < a[j].number
}

func (a applications) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

func (a *applications) Push(x any) { *a = append(*a, x.(*application)) }

func (a *applications) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}
