package mark

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTrackerTakesTheFloorFromTheObservationBefore(t *testing.T) {
	k := newTracker(10)
	require.EqualValues(t, 10, k.observe(15, []string{"3/7"}), "whoever is open at the start may hold 11")
	require.EqualValues(t, 10, k.observe(18, []string{"3/7", "4/1"}))
	require.Equal(t, []string{"3/7"}, k.holding())
	require.EqualValues(t, 15, k.observe(20, []string{"4/1"}), "4/1 locked after 15 was read")
	require.EqualValues(t, 20, k.observe(25, []string{"5/1", "5/1"}), "5/1 draws above 20")
	require.EqualValues(t, 25, k.observe(25, nil))
	require.Empty(t, k.holding())
}

func TestTrackerKeepsTheMarkAndForgetsWhenTheSequenceGoesBack(t *testing.T) {
	k := newTracker(0)
	k.observe(100, []string{"1/1"})
	k.observe(200, []string{"2/1"})
	require.EqualValues(t, 100, k.mark)
	// Set back to 120 between two looks; 3/1 draws 121 after that.
	require.EqualValues(t, 100, k.observe(121, []string{"3/1"}), "above 200 is not known any more")
	require.EqualValues(t, 121, k.observe(121, nil))
}

func TestTrackerTakesOverTheFloorOfARenamedTransaction(t *testing.T) {
	k := newTracker(0)
	k.observe(10, nil)
	k.observe(20, []string{"1/1"})
	k.observe(30, []string{"1/1", "2/1"})
	require.EqualValues(t, 10, k.observe(40, []string{"-1/700", "2/1"}), "it may be 1/1")
	require.EqualValues(t, 20, k.observe(50, []string{"2/1"}), "2/1 keeps its own")
	require.EqualValues(t, 20, k.observe(60, []string{"-1/701", "3/1"}), "2/1 may be 701")
	require.EqualValues(t, 20, k.observe(70, []string{"-1/702"}), "so 701 may be 702")
	require.EqualValues(t, 70, k.observe(80, []string{"4/1"}))
	require.EqualValues(t, 70, k.observe(90, []string{"-1/703", "4/1"}))
	require.EqualValues(t, 80, k.observe(95, []string{"-1/703"}), "nobody was missing when it came: it drew above 80")
}

// The model: a sequence, sessions whose transactions draw, commit, roll back and
// prepare, a server that crashes, and detectors whose steps come between any of
// these. What is checked is the promise itself: when a mark is told, nobody who
// is open holds a position up to it, and none is handed out later.
type model struct {
	pick func(n int) int
	rule rules

	last      int64 // of the sequence
	durable   int64 // what a crash sets it back to, at most
	sessions  []*modelSession
	others    []*modelTx // prepared, or at the end of COMMIT
	xid       int
	persisted int64
	told      int64 // highest mark anybody was told of
	watches   []*watch
	lost      string
}

type rules struct {
	setFirst     bool // holders are read before the end of the sequence
	byPID        bool // holders are told apart by process id
	cached       bool // sessions draw ahead
	drawnBefore  bool // positions are drawn in an earlier transaction
	floorIsEnd   bool // a new holder's floor is the end just read
	startKnows   bool // after a restart holders get the floor of new ones
	keepsState   bool // a lost connection changes nothing
	toldEarly    bool // a mark is told before it is stored
	renames      bool // PREPARE changes the name, as old servers do
	noRename     bool // a renamed holder is a new one
	endAloneSets bool // an end that was read alone counts as an observation
}

type modelSession struct {
	id      int
	local   int
	tx      *modelTx
	reserve []int64
}

type modelTx struct {
	name      string
	pid       int
	locked    bool
	positions []int64
	visible   bool
}

type watch struct {
	k       *tracker
	phase   int
	end     int64
	raise   int64
	holders []string
}

func newModel(rule rules, pick func(int) int) *model {
	m := &model{pick: pick, rule: rule}
	for i := range 4 {
		m.sessions = append(m.sessions, &modelSession{id: i + 1})
	}
	for range 2 {
		m.watches = append(m.watches, &watch{k: newTracker(0)})
	}
	return m
}

func (m *model) run(steps int) string {
	for range steps {
		m.step()
		if m.lost != "" {
			return m.lost
		}
	}
	return m.settle()
}

func (m *model) step() {
	s := m.sessions[m.pick(len(m.sessions))]
	switch a := m.pick(20); {
	case a < 6:
		m.draw(s)
	case a < 8:
		m.end(s, true)
	case a == 8:
		m.end(s, false)
	case a == 9 && s.tx != nil:
		m.prepare(s)
	case a == 10 && len(m.others) > 0:
		i := m.pick(len(m.others))
		m.durably(m.others[i])
		m.others = append(m.others[:i:i], m.others[i+1:]...)
	case a == 11 && m.pick(4) == 0:
		m.crash()
	case a == 12 && m.pick(2) == 0:
		w := m.watches[m.pick(len(m.watches))]
		m.reconnect(w)
	default:
		m.look(m.watches[m.pick(len(m.watches))])
	}
}

func (m *model) begin(s *modelSession) *modelTx {
	if s.tx == nil {
		s.local++
		s.tx = &modelTx{name: fmt.Sprintf("%d/%d", s.id, s.local), pid: s.id}
	}
	return s.tx
}

func (m *model) next(s *modelSession) int64 {
	if !m.rule.cached {
		m.last++
		return m.last
	}
	if len(s.reserve) == 0 {
		for range 3 {
			m.last++
			s.reserve = append(s.reserve, m.last)
		}
	}
	p := s.reserve[0]
	s.reserve = s.reserve[1:]
	return p
}

func (m *model) draw(s *modelSession) {
	tx := m.begin(s)
	if m.rule.drawnBefore && !tx.locked {
		p := m.next(s) // by somebody who commits at once
		tx.positions, tx.locked = append(tx.positions, p), false
		m.check()
		return
	}
	if !tx.locked {
		tx.locked = true
		return // the draw is a later step
	}
	tx.positions = append(tx.positions, m.next(s))
	m.check()
}

func (m *model) durably(tx *modelTx) {
	for _, p := range tx.positions {
		m.durable = max(m.durable, p)
	}
}

// end is the commit, in two steps: visible, then the lock goes.
func (m *model) end(s *modelSession, commit bool) {
	tx := s.tx
	if tx == nil {
		return
	}
	s.tx = nil
	if !commit {
		return
	}
	m.durably(tx)
	tx.visible = true
	if m.pick(2) == 0 {
		m.others = append(m.others, tx) // the lock stays for a while
	}
}

func (m *model) prepare(s *modelSession) {
	tx := s.tx
	s.tx = nil
	m.xid++
	tx.pid = 0
	m.durably(tx)
	if m.rule.renames {
		tx.name = fmt.Sprintf("-1/%d", 700+m.xid)
	}
	m.others = append(m.others, tx)
}

func (m *model) crash() {
	for _, s := range m.sessions {
		*s = modelSession{id: s.id}
	}
	var prepared []*modelTx
	for _, tx := range m.others {
		if !tx.visible {
			m.xid++
			tx.name = fmt.Sprintf("-1/%d", 900+m.xid)
			prepared = append(prepared, tx)
		}
	}
	m.others = prepared
	m.durable = max(m.durable, m.persisted)
	m.last = m.durable + int64(m.pick(int(m.last-m.durable)+1))
	for _, w := range m.watches {
		if !m.rule.keepsState {
			m.reconnect(w)
		}
	}
	if !m.rule.toldEarly {
		m.told = m.persisted
	}
}

func (m *model) reconnect(w *watch) {
	*w = watch{k: newTracker(m.persisted)}
	if m.rule.startKnows {
		w.k.fresh, w.k.prevEnd = false, m.last
	}
}

func (m *model) names() (list []string) {
	add := func(tx *modelTx) {
		switch {
		case tx == nil || !tx.locked:
		case m.rule.byPID:
			list = append(list, fmt.Sprint(tx.pid))
		default:
			list = append(list, tx.name)
		}
	}
	for _, s := range m.sessions {
		add(s.tx)
	}
	for _, tx := range m.others {
		add(tx)
	}
	return list
}

func (m *model) look(w *watch) {
	first := func() { w.end, w.raise = m.last, m.persisted }
	second := func() { w.holders = m.names() }
	if m.rule.setFirst {
		first, second = second, first
	}
	switch w.phase {
	case 0:
		first()
		if !m.rule.setFirst && m.pick(4) == 0 { // an end alone, as while idle
			if m.rule.endAloneSets {
				w.k.prevEnd = w.end
			}
			return
		}
	case 1:
		second()
	case 2:
		w.k.raise(w.raise)
		m.observe(w)
		if m.rule.toldEarly {
			m.tell(w.k.mark)
		}
	case 3:
		m.persisted = max(m.persisted, w.k.mark)
		m.durable = max(m.durable, m.persisted)
		m.tell(m.persisted)
		if m.pick(2) == 0 { // the other one is notified
			m.watches[m.pick(len(m.watches))].k.raise(m.persisted)
		}
	}
	w.phase = (w.phase + 1) % 4
}

func (m *model) observe(w *watch) {
	if m.rule.floorIsEnd {
		w.k.prevEnd = w.end
	}
	if m.rule.noRename {
		for i, h := range w.holders {
			if len(h) > 3 && h[:3] == "-1/" {
				w.holders[i] = "new" + h
			}
		}
	}
	w.k.observe(w.end, w.holders)
}

func (m *model) tell(mark int64) {
	m.told = max(m.told, mark)
	m.check()
}

func (m *model) check() {
	open := func(tx *modelTx) {
		if tx == nil || tx.visible {
			return
		}
		for _, p := range tx.positions {
			if p <= m.told {
				m.lost = fmt.Sprintf("%s holds position %d, the mark is %d", tx.name, p, m.told)
			}
		}
	}
	for _, s := range m.sessions {
		open(s.tx)
	}
	for _, tx := range m.others {
		open(tx)
	}
}

// settle ends every transaction: the mark has to reach the end.
func (m *model) settle() string {
	for _, s := range m.sessions {
		s.tx = nil
	}
	m.others = nil
	for _, w := range m.watches {
		for w.phase != 0 {
			m.look(w)
		}
		w.k.raise(m.persisted)
		if mark := w.k.observe(m.last, nil); mark != m.last {
			return fmt.Sprintf("nobody is open, the mark is %d of %d", mark, m.last)
		}
	}
	return m.lost
}

func TestTrackerSkipsNothingInAnyInterleaving(t *testing.T) {
	for name, rule := range map[string]rules{"names stay": {}, "prepare renames": {renames: true}} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := newModel(rule, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
				if lost := m.run(rapid.IntRange(1, 120).Draw(t, "steps")); lost != "" {
					t.Fatal(lost)
				}
			})
			for seed := range uint64(4000) {
				m := newModel(rule, rand.New(rand.NewPCG(seed, 1)).IntN)
				require.Emptyf(t, m.run(200), "seed %d", seed)
			}
		})
	}
}

// What shows that the model can lose: every wrong algorithm does.
func TestMutantsOfTheTrackerLoseInTheModel(t *testing.T) {
	for name, rule := range map[string]rules{
		"holders read before the end":     {setFirst: true},
		"holders told apart by pid":       {byPID: true},
		"cached draws":                    {cached: true},
		"drawn in an earlier transaction": {drawnBefore: true},
		"floor is the end just read":      {floorIsEnd: true},
		"no floor of the mark at a start": {startKnows: true},
		"state kept over a crash":         {keepsState: true},
		"told before it is stored":        {toldEarly: true},
		"a renamed holder counts as new":  {renames: true, noRename: true},
		"an end read alone is a floor":    {endAloneSets: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20000) {
				if newModel(rule, rand.New(rand.NewPCG(seed, 2)).IntN).run(200) != "" {
					t.Logf("lost with seed %d", seed)
					return
				}
			}
			t.Fatal("20,000 runs and nothing was lost")
		})
	}
}
