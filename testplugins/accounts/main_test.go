package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/samples"
	projhost "github.com/projhost/projhost/sdk/go"
	"github.com/projhost/projhost/sdk/go/projhosttest"
)

func event(typ, data string) projhosttest.Event {
	return projhosttest.Event{AggregateType: "account", AggregateID: "A-1", Type: typ, Data: data}
}

func TestAccount(t *testing.T) {
	h := projhosttest.New(t, plugin())
	h.Apply(
		event("opened", `{"owner":"Ada Lovelace"}`),
		event("deposited", `{"amount":"100.50"}`),
		event("withdrawn", `{"amount":0.5}`),
		event("renamed", `{}`), // no handler
	)
	require.Equal(t, `{"owner":"Ada Lovelace","status":"open","balance":"100.00","events":3,`+
		`"updated_at":"2026-01-01T00:00:03.000000Z"}`, h.Row("accounts", "A-1"))

	h.Apply(event("closed", `{}`))
	require.Contains(t, h.Row("accounts", "A-1"), `"status":"closed"`)
	require.ErrorContains(t, h.Try(event("deposited", `{"amount":true}`)), "amount: want a number, have a boolean: true")
}

func TestGolden(t *testing.T) {
	h := projhosttest.New(t, plugin())
	for e := range samples.Accounts(500, 40) {
		h.Apply(sampled(e))
	}
	h.Golden("testdata/accounts.golden")
}

func TestBatchesDoNotShow(t *testing.T) {
	var events []projhosttest.Event
	for e := range samples.Accounts(500, 40) {
		events = append(events, sampled(e))
	}
	projhosttest.SameInAnySplit(t, plugin, events)
}

func sampled(e samples.Event) projhosttest.Event {
	return projhosttest.Event{
		ID: e.ID, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type,
		Data: string(e.Data), Metadata: string(e.Metadata), Time: projhost.Timestamp(e.OccurredUS),
	}
}
