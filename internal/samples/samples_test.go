package samples

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The demo's rows, golden files and figures depend on every byte.
func TestTheSameEventsEverywhere(t *testing.T) {
	for name, c := range map[string]struct {
		events iter.Seq[Event]
		want   string
	}{
		"accounts": {Accounts(5000, AccountsDefault), "7d876617d6e784c90828d5ab2a33c0884eff7f08486f981393e59e2da190cc92"},
		"loans":    {Loans(LoansDefault), "1c5329795f362a59d4793095db8e69da111faeee2a7e292fa86983a1e9c91f0a"},
	} {
		h := sha256.New()
		var line []byte
		for e := range c.events {
			line = e.AppendLine(line[:0])
			h.Write(line)
		}
		require.Equal(t, c.want, hex.EncodeToString(h.Sum(nil)), name)
	}
}

// line is an event in the import format, read by the standard library.
type line struct {
	ID            string          `json:"id"`
	AggregateType string          `json:"aggregate_type"`
	AggregateID   string          `json:"aggregate_id"`
	Type          string          `json:"type"`
	Data          json.RawMessage `json:"data"`
	Metadata      json.RawMessage `json:"metadata"`
	OccurredAt    time.Time       `json:"occurred_at"`
}

func TestLinesAreTheImportFormat(t *testing.T) {
	for name, events := range map[string]iter.Seq[Event]{"accounts": Accounts(3000, 300), "loans": Loans(3000)} {
		ids := map[string]bool{}
		var last time.Time
		count := 0
		for e := range events {
			text := e.AppendLine(nil)
			require.Equal(t, byte('\n'), text[len(text)-1])
			dec := json.NewDecoder(strings.NewReader(string(text)))
			dec.DisallowUnknownFields()
			var l line
			require.NoError(t, dec.Decode(&l), "%s", text)
			require.Equal(t, string(e.Data), string(l.Data), "byte for byte")
			require.Equal(t, e.OccurredUS, l.OccurredAt.UnixMicro())
			require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, l.ID)
			require.False(t, ids[l.ID], "an id twice")
			ids[l.ID] = true
			require.False(t, l.OccurredAt.Before(last), "%s: time goes back", name)
			last = l.OccurredAt
			count++
		}
		require.Equal(t, 3000, count)
	}
}

func TestAccountsAreOpenedFirstAndNeverOverdrawn(t *testing.T) {
	balances := map[string]float64{}
	types := map[string]int{}
	size := 0
	for e := range Accounts(10_000, 300) {
		types[e.Type]++
		size += len(e.Data)
		var data struct {
			Amount float64 `json:"amount,string"`
		}
		require.NoError(t, json.Unmarshal(e.Data, &data))
		balance, open := balances[e.AggregateID]
		switch e.Type {
		case "opened":
			require.False(t, open)
			balances[e.AggregateID] = balance
			continue
		case "deposited":
			balance += data.Amount
		case "withdrawn":
			balance -= data.Amount
		case "closed":
			// Its money stays on it, so that a balance is a sum of all its events.
			delete(balances, e.AggregateID)
			continue
		}
		require.True(t, open, e.AggregateID)
		balances[e.AggregateID] = balance
	}
	require.Len(t, types, 4)
	require.InDelta(t, 190, size/10_000, 30, "bytes of data an event")
}

func TestLoansHaveTheShapeOfTheRealLog(t *testing.T) {
	seen := map[string]bool{}
	hot := map[string]bool{}
	kinds := map[byte]int{}
	without, amounts := 0, 0
	for e := range Loans(LoansDefault) {
		var data struct {
			Resource *string `json:"org:resource"`
			State    string  `json:"lifecycle:transition"`
			Case     *struct {
				Registered time.Time `json:"REG_DATE"`
				Amount     *string   `json:"AMOUNT_REQ"`
			} `json:"case"`
		}
		require.NoError(t, json.Unmarshal(e.Data, &data))
		kinds[e.Type[0]]++
		require.Equal(t, "_", e.Type[1:2])
		require.NotEmpty(t, data.State)
		if !seen[e.AggregateID] {
			require.Equal(t, "A_SUBMITTED", e.Type)
			require.NotNil(t, data.Case)
			if data.Case.Amount != nil {
				amounts++
			}
		} else {
			require.Nil(t, data.Case)
		}
		seen[e.AggregateID] = true
		switch {
		case data.Resource == nil:
			without++
		case *data.Resource == hotResource:
			hot[e.AggregateID] = true
		}
	}
	require.Len(t, kinds, 3)
	require.Equal(t, len(seen), len(hot), "one resource has worked on every application")
	require.Greater(t, len(seen), 500)
	require.Less(t, amounts, len(seen))
	require.InDelta(t, 0.07, float64(without)/LoansDefault, 0.03)
}

func TestAWalkCanEndEarly(t *testing.T) {
	for range Loans(1 << 40) {
		break
	}
	for range Accounts(1<<40, 3) {
		break
	}
}
