package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/sdk/go"
	"github.com/projhost/projhost/sdk/go/projhosttest"
	"github.com/projhost/projhost/testplugins/loans/oracle"
)

func TestRowsAreThoseOfTheOracle(t *testing.T) {
	h := projhosttest.New(t, plugin())
	fold := oracle.New()
	var batch []projhosttest.Event
	for e := range samples.Loans(3000) {
		require.NoError(t, fold.Add(oracle.Event{
			AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type, Data: e.Data, OccurredUS: e.OccurredUS,
		}))
		batch = append(batch, projhosttest.Event{
			ID: e.ID, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type,
			Data: string(e.Data), Time: projhost.Timestamp(e.OccurredUS),
		})
		if len(batch) == 100 {
			h.Apply(batch...)
			batch = nil
		}
	}
	h.Apply(batch...)
	for table, rows := range fold.Tables() {
		require.Len(t, h.Rows(table), len(rows), table)
		for _, row := range rows {
			require.Equal(t, row.JSON, h.Child(table, row.Key, row.Child), "%s %s %s", table, row.Key, row.Child)
		}
	}
}

func event(id, typ, data string) projhosttest.Event {
	return projhosttest.Event{AggregateType: "loan-application", AggregateID: id, Type: typ, Data: data}
}

func TestApplication(t *testing.T) {
	h := projhosttest.New(t, plugin())
	h.Apply(
		event("1", "A_SUBMITTED", `{"org:resource":"112","case":{"AMOUNT_REQ":"20000"}}`),
		event("1", "W_Completeren aanvraag", `{"lifecycle:transition":"SCHEDULE"}`),
		event("1", "O_CREATED", `{"org:resource":"10862","case":{"AMOUNT_REQ":"1"}}`),
		event("2", "W_Afhandelen leads", `{"org:resource":null}`),
	)
	require.Equal(t, `{"amount":"20000.00","status":"A_SUBMITTED","offers":1,"events":3,`+
		`"first_at":"2026-01-01T00:00:01.000000Z","last_at":"2026-01-01T00:00:03.000000Z","last_resource":"10862",`+
		`"state":{"amount":"20000.00","status":"A_SUBMITTED","offers":1,"events":3,"last_resource":"10862"}}`,
		h.Row("applications", "1"))
	require.Equal(t, `{"amount":null,"status":null,"offers":0,"events":1,`+
		`"first_at":"2026-01-01T00:00:04.000000Z","last_at":"2026-01-01T00:00:04.000000Z","last_resource":null,`+
		`"state":{"amount":null,"status":null,"offers":0,"events":1,"last_resource":null}}`,
		h.Row("applications", "2"))
}

func TestResourceCountsAnApplicationOnce(t *testing.T) {
	h := projhosttest.New(t, plugin())
	h.Apply(
		event("1", "A_SUBMITTED", `{"org:resource":"112"}`),
		event("2", "A_SUBMITTED", `{"org:resource":112}`),
		event("1", "A_DECLINED", `{"org:resource":"112"}`),
	)
	require.Equal(t, `{"events":3,"applications":2,"last_at":"2026-01-01T00:00:03.000000Z"}`, h.Row("resources", "112"))
	require.Equal(t, []string{
		`{"key":"112","child":"1","row":{"first_at":"2026-01-01T00:00:01.000000Z"}}`,
		`{"key":"112","child":"2","row":{"first_at":"2026-01-01T00:00:02.000000Z"}}`,
	}, h.Rows("resource_applications"))
}

func TestWhatCannotBeAppliedSaysWhy(t *testing.T) {
	h := projhosttest.New(t, plugin())
	err := h.Try(event("1", "A_SUBMITTED", `{"case":{"AMOUNT_REQ":"a lot"}}`))
	require.EqualError(t, err, `projection applications: A_SUBMITTED loan-application/1: reject: `+
		`/case/AMOUNT_REQ: want a decimal number, have a string: "a lot"`)
	err = h.Try(event("1", "A_SUBMITTED", `{"case":{"AMOUNT_REQ":"0.001"}}`))
	require.ErrorContains(t, err, "/case/AMOUNT_REQ: 0.001 has more than 2 digits behind the point")
	err = h.Try(event("1", "A_SUBMITTED", `{"org:resource":{}}`))
	require.ErrorContains(t, err, "/org:resource is an object")
	require.Empty(t, h.Row("applications", "1"))
}
