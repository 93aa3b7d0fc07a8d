package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/store/drivers"
)

// release is set by the linker: -X main.release=v1.2.3.
var release = ""

// version is the release, else what the Go toolchain recorded of the build.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "devel"
	}
	return strings.Trim(info.Main.Version, "()")
}

type versionInfo struct {
	Version string   `json:"version"`
	Go      string   `json:"go"`
	OS      string   `json:"os"`
	ABI     []string `json:"abi"`
	Drivers []string `json:"drivers"`
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, Go version, ABI versions and database drivers",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, []string{fmt.Sprintf("1.%d", abi.Minor)}, drivers.Names()}
			if c.json {
				return c.printJSON(v)
			}
			_, err := fmt.Fprintf(c.stdout, "projhost %s\ngo       %s %s\nabi      %s\ndrivers  %s\n",
				v.Version, strings.TrimPrefix(v.Go, "go"), v.OS, strings.Join(v.ABI, ", "), strings.Join(v.Drivers, ", "))
			return err
		},
	}
}
