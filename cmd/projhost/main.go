// Command projhost runs a host for WebAssembly projections, and is its command
// line: events in and out, read models, status, plugins.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
