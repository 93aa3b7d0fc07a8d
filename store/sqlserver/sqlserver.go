// Package sqlserver is the driver for SQL Server 2019 and later and for Azure
// SQL, through github.com/microsoft/go-mssqldb.
//
// A transaction that appends or applies is one batch of T-SQL with its rows in
// JSON: between its BEGIN and its COMMIT the server waits for nobody, and what
// the batch relies on fails as an error within it (P1, P2). Positions come from
// the topic's row, which is the last lock that an append takes.
//
// Every text is varchar in UTF-8 with a binary collation. Readers see row
// versions, so that they never wait for writers.
package sqlserver
