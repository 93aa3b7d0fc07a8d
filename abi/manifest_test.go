package abi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const loansManifest = `{"abi": 1, "name": "loans", "version": "1.4.0",
 "consumers": [{
   "type": "projection", "name": "applications",
   "inputs": [{"topic": "events", "aggregate_types": ["loan-application"], "types": ["A_SUBMITTED", "A_DECLINED"],
               "key": "aggregate_id"}],
   "tables": [{"name": "applications",
               "columns": [{"name": "status", "kind": "text", "max": 40, "index": true},
                           {"name": "amount", "kind": "decimal", "precision": 19, "scale": 2},
                           {"name": "state",  "kind": "json"}]}],
   "distribution": "spread", "ignore_on_replay": false}]}`

func TestParseManifest(t *testing.T) {
	m, err := ParseManifest([]byte(loansManifest))
	require.NoError(t, err)
	require.Equal(t, &Manifest{
		ABI: 1, Name: "loans", Version: "1.4.0",
		Consumers: []Consumer{{
			Type: Projection, Name: "applications", Distribution: Spread,
			Inputs: []Input{{
				Topic: "events", AggregateTypes: []string{"loan-application"},
				Types: []string{"A_SUBMITTED", "A_DECLINED"}, Key: KeyRule{Kind: KeyAggregateID},
			}},
			Tables: []Table{{Name: "applications", Columns: []Column{
				{Name: "status", Kind: ColumnText, Max: 40, Index: true},
				{Name: "amount", Kind: ColumnDecimal, Precision: 19, Scale: 2},
				{Name: "state", Kind: ColumnJSON},
			}}},
		}},
	}, m)
	again, err := ParseManifest(m.AppendJSON(nil))
	require.NoError(t, err)
	require.Equal(t, m, again)
}

func TestManifestTellsEveryProblem(t *testing.T) {
	_, err := ParseManifest([]byte(`{"abi": 2, "name": "x;y", "nam": 1, "consumers": [
	  {"type": "projection", "name": "a", "inputs": [{"topic": "events", "types": ["T", "*"], "key": {"pointer": "a"}}],
	   "tables": [{"name": "ph_x", "columns": [{"name": "KEY", "kind": "decimal", "unique": true}, 7]},
	              {"name": "c", "parent": "nope", "free": 1, "columns": []}]}, "?"]}`))
	var problems *ManifestError
	require.ErrorAs(t, err, &problems)
	require.ErrorIs(t, err, ErrMalformed)
	for _, want := range []string{
		`nam: is not a member`,
		`abi: is 2`,
		`name: "x;y" is no name`,
		`version: is needed`,
		`consumers[0].inputs[0].types[1]: "*" stands alone`,
		`consumers[0].inputs[0].key: "a" is no JSON pointer`,
		`consumers[0].tables[0].name: "ph_x" is reserved`,
		`consumers[0].tables[0].columns[0].name: "KEY" is reserved`,
		`consumers[0].tables[0].columns[0].precision: must be from 1 to 38`,
		`consumers[0].tables[0].columns[0].unique: needs "distribution"`,
		`consumers[0].tables[0].columns[1]: must be an object, not a number`,
		`consumers[0].tables[1].free: must be true or false, not a number`,
		`consumers[0].tables[1].parent: "nope" is no table`,
		`consumers[1]: must be an object, not a string`,
	} {
		require.Contains(t, err.Error(), "  "+want)
	}
	require.Len(t, problems.Problems, 14)
}

func TestHugeManifestIsRefusedCheaply(t *testing.T) {
	for _, doc := range []string{
		strings.Repeat("[", MaxManifest+1),
		`{"abi":1,"consumers":[` + strings.Repeat(`{},`, 300_000) + `{}]}`,
		`{"abi":1,"consumers":[{"tables":[{"columns":[` + strings.Repeat(`{},`, 300_000) + `{}]}]}]}`,
		strings.Repeat("[", MaxManifest/2) + strings.Repeat("]", MaxManifest/2),
	} {
		allocated := testing.AllocsPerRun(1, func() {
			_, err := ParseManifest([]byte(doc))
			require.True(t, errors.Is(err, ErrMalformed))
		})
		require.Less(t, allocated, 1000.0)
	}
}

func TestManifestIsBoundedInAll(t *testing.T) {
	table := `{"columns":[` + strings.Repeat(`{},`, 70) + `{}]}`
	consumer := `{"tables":[` + strings.Repeat(table+",", 63) + table + `]}`
	doc := `{"consumers":[` + strings.Repeat(consumer+",", 62) + consumer + `]}`
	require.Less(t, len(doc), MaxManifest)
	_, err := ParseManifest([]byte(doc))
	require.EqualError(t, err, "manifest: it has more than 65536 members and elements in all")

	// And where few entries make many problems, they are not all kept.
	_, err = ParseManifest([]byte(`{"consumers":[{"tables":[` + strings.Repeat(table+",", 63) + table + `]}]}`))
	var problems *ManifestError
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems.Problems, 1001)
	require.Equal(t, "there are more problems than these 1000", problems.Problems[1000])
}

func TestConsumerMatch(t *testing.T) {
	c := Consumer{Inputs: []Input{
		{Topic: "events", AggregateTypes: []string{"order", "cart"}, Types: []string{"A", "B"}},
		{Topic: "events", AggregateTypes: []string{"order"}, Types: []string{"B", "C"}},
		{Topic: "events", AggregateTypes: []string{"loan"}, Types: []string{"*"}},
		{Topic: "capture", Types: []string{"A", "*x"}},
	}}
	for _, tt := range []struct {
		topic, aggregate, typ string
		input, index          uint16
		ok                    bool
	}{
		{"events", "cart", "B", 0, 1, true},
		{"events", "order", "B", 0, 1, true},
		{"events", "order", "C", 1, 1, true},
		{"events", "cart", "C", 0, 0, false},
		{"events", "loan", "anything", 2, TypeByName, true},
		{"capture", "whatever", "A", 3, 0, true},
		{"capture", "whatever", "B", 0, 0, false},
		{"other", "order", "A", 0, 0, false},
	} {
		input, index, ok := c.Match(tt.topic, tt.aggregate, tt.typ)
		require.Equal(t, tt.ok, ok, "%+v", tt)
		require.Equal(t, [2]uint16{tt.input, tt.index}, [2]uint16{input, index}, "%+v", tt)
	}
}

func TestManifestMarshalsAsItIsWritten(t *testing.T) {
	m, err := ParseManifest([]byte(loansManifest))
	require.NoError(t, err)
	byReflection, err := json.Marshal(m)
	require.NoError(t, err)
	require.JSONEq(t, string(byReflection), string(m.AppendJSON(nil)))
	var back Manifest
	require.NoError(t, json.Unmarshal(byReflection, &back))
	require.Equal(t, m, &back)
}
