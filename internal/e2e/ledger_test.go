package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/readmodel"
)

// ledgers are the consumers of the plugin ledger: natively keyed, keyed by what a
// pointer finds, and of one owner with free tables.
var ledgers = []string{"ledger_streams", "ledger_resources", "ledger_total"}

// withLedger adds the plugin ledger to a site, whose every message takes some
// turns of a loop more. Its calls have a limit, since one without cannot be
// interrupted at all: as many as there are processors keep the host's own work
// waiting, heartbeats included.
func (s *site) withLedger(spin int) *site {
	s.t.Helper()
	s.append(fmt.Sprintf("[[plugin]]\nname = \"ledger\"\npath = \"ledger.wasm\"\ntimeout = \"60s\"\nconfig = {spin = %d}\n", spin))
	s.write("ledger.wasm", string(guest.Build(s.t, "testplugins/ledger")))
	return s
}

// auditLedgers has the database write down each commit that writes an entry of
// the ledgers. The entries themselves would not tell: a host that applies a
// message in the belief that nobody has writes the very row that is there.
func (s *site) auditLedgers() {
	s.t.Helper()
	statements := []string{`CREATE TABLE audit (entries varchar(100) NOT NULL, account varchar(255) NOT NULL, message varchar(255) NOT NULL)`}
	for _, l := range ledgers {
		message := `NEW."child"`
		if l == "ledger_total" {
			message = `NEW."key"`
		}
		row := s.rows(`SELECT "live_build" FROM "ph_consumers" WHERE "name" = '` + l + `'`)
		build, err := strconv.ParseInt(row[0][0], 10, 64)
		require.NoError(s.t, err)
		entries := `"` + readmodel.PhysicalName("", l+"_entries", build) + `"`
		note := fmt.Sprintf(`INSERT INTO audit VALUES ('%s', NEW."key", %s)`, l, message)
		if s.driver == "postgres" {
			statements = append(statements,
				fmt.Sprintf(`CREATE FUNCTION audit_%s() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s; RETURN NEW; END $$`, l, note),
				fmt.Sprintf(`CREATE TRIGGER audit BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION audit_%s()`, entries, l))
			continue
		}
		for _, when := range []string{"INSERT", "UPDATE"} {
			statements = append(statements, fmt.Sprintf(`CREATE TRIGGER %s_%s BEFORE %s ON %s FOR EACH ROW %s`, l, when, when, entries, note))
		}
	}
	for _, statement := range statements {
		s.exec(statement)
	}
}

// exec runs a statement, its names in double quotes.
func (s *site) exec(statement string) {
	s.t.Helper()
	db := s.open()
	defer db.Close()
	if s.driver == "mysql" {
		statement = strings.ReplaceAll(statement, `"`, "`")
	}
	_, err := db.Exec(statement)
	require.NoError(s.t, err, statement)
}

// account is a row of a ledger.
type account struct{ messages, chain int64 }

func (a account) add(position int64) account {
	return account{a.messages + 1, (a.chain ^ position) * 1099511628211}
}

// booked is what the ledgers say, or should.
type booked struct {
	accounts map[string]account // by ledger and key
	entries  map[string]int64   // by ledger, key and message: the times it was applied
}

// book makes of the log what the ledgers should say.
func (s *site) book() booked {
	s.t.Helper()
	b := booked{map[string]account{}, map[string]int64{}}
	positions := s.rows(`SELECT "position" FROM "ph_events" ORDER BY "position"`)
	dec := json.NewDecoder(strings.NewReader(s.command("export", "events")))
	for _, row := range positions {
		var e struct {
			ID          string
			AggregateID string `json:"aggregate_id"`
			Data        struct {
				Resource any `json:"org:resource"`
			}
		}
		dec.UseNumber()
		require.NoError(s.t, dec.Decode(&e))
		position, err := strconv.ParseInt(row[0], 10, 64)
		require.NoError(s.t, err)
		keys := map[string]string{"ledger_streams": e.AggregateID, "ledger_total": "total"}
		if e.Data.Resource != nil && e.Data.Resource != "" {
			keys["ledger_resources"] = fmt.Sprint(e.Data.Resource)
		}
		for ledger, key := range keys {
			place := ledger + " " + key
			b.accounts[place] = b.accounts[place].add(position)
			if ledger == "ledger_total" {
				key = e.ID // the rows of its entries have no other
			}
			b.entries[ledger+" "+key+" "+e.ID] = 1
		}
	}
	require.False(s.t, dec.More())
	return b
}

// ledger reads the ledgers' own tables.
func (s *site) ledger() booked {
	s.t.Helper()
	b := booked{map[string]account{}, map[string]int64{}}
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		require.NoError(s.t, err)
		return n
	}
	for _, l := range ledgers {
		for _, r := range s.rows(`SELECT "key", "messages", "chain" FROM "` + l + `"`) {
			b.accounts[l+" "+r[0]] = account{number(r[1]), number(r[2])}
		}
		message := `"child"`
		if l == "ledger_total" {
			message = `"key"`
		}
		for _, r := range s.rows(`SELECT "key", ` + message + `, "times" FROM "` + l + `_entries"`) {
			b.entries[l+" "+r[0]+" "+r[1]] = number(r[2])
		}
	}
	return b
}

// audited counts the commits that wrote each entry.
func (s *site) audited() map[string]int64 {
	s.t.Helper()
	times := map[string]int64{}
	for _, r := range s.rows(`SELECT "entries", "account", "message" FROM "audit"`) {
		times[strings.Join(r, " ")]++
	}
	return times
}

// violations are the places at which the ledgers of a site at rest do not show
// each message and key exactly once, in the order of the log.
func (s *site) violations() []string {
	s.t.Helper()
	want, have := s.book(), s.ledger()
	list := different("account", want.accounts, have.accounts)
	list = append(list, different("times of", want.entries, have.entries)...)
	return append(list, different("commits of", want.entries, s.audited())...)
}

func different[V comparable](what string, want, have map[string]V) (list []string) {
	all := maps.Clone(have)
	maps.Copy(all, want)
	for _, place := range slices.Sorted(maps.Keys(all)) {
		if w, h := want[place], have[place]; w != h {
			list = append(list, fmt.Sprintf("%s %s: %v, not %v", what, place, h, w))
		}
	}
	return list
}

// balances checks that there are no violations.
func (s *site) balances() {
	s.t.Helper()
	list := s.violations()
	require.Empty(s.t, list[:min(len(list), 20)], "%d places", len(list))
}
