package sqlserver

import "github.com/projhost/projhost/store/internal/sqlstore"

// queries are the static statements, with the table prefix put in.
type queries struct {
	append     string
	version    string
	versions   string
	byID       string
	stream     string
	page       string
	pagePart   string
	pageSome   string
	snapshot   string
	applyBegin string
	applyHold  string
	applyMove  string
	applyEnd   string
	standing   string
	retry      string
	record     string
	skip       string
	haltBatch  string
	retried    string
	claim      string
	release    string
	leave      string
	halt       string
	clearHalt  string
	now        string
}

func newQueries(c *sqlstore.Core) queries {
	return queries{
		append:     c.SQL(appendSQL),
		version:    c.SQL(versionSQL),
		versions:   c.SQL(versionsSQL),
		byID:       c.SQL(byIDSQL),
		stream:     c.SQL(streamSQL),
		page:       c.SQL(pageSQL),
		pagePart:   c.SQL(pagePartSQL),
		pageSome:   c.SQL(pageSomeSQL),
		snapshot:   c.SQL(snapshotSQL),
		applyBegin: c.SQL(batchHead + "\n" + stageLeasesSQL + stageMovesSQL),
		applyHold:  c.SQL("BEGIN TRANSACTION;\n" + holdLeasesSQL + guardLeasesSQL),
		applyMove:  c.SQL(moveCheckpointsSQL),
		applyEnd:   "COMMIT TRANSACTION;\n",
		standing:   c.SQL(standingSQL),
		retry:      c.SQL(retrySQL),
		record:     c.SQL(recordSQL),
		skip:       c.SQL(skipSQL),
		haltBatch:  c.SQL(haltConsumerSQL),
		retried:    c.SQL(retriedSQL),
		claim:      c.SQL(claimSQL),
		release:    c.SQL(releaseSQL),
		leave:      c.SQL(leaveSQL),
		halt:       c.SQL(haltSQL),
		clearHalt:  c.SQL(clearHaltSQL),
		now:        "SELECT " + nowSQL,
	}
}
