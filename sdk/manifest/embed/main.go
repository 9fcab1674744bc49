// Command embed puts the plugin.json of a folder into a module, in place: embed MODULE FOLDER. It is 'sluice plugin embed' for
// builds that have no sluice yet.
package main

import (
	"fmt"
	"os"

	"github.com/sluice-proxy/sluice/sdk/manifest"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: embed MODULE FOLDER")
		os.Exit(2)
	}
	file, err := manifest.FindFile(os.Args[2])
	if err == nil {
		err = manifest.EmbedFile(os.Args[1], file)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "embed: %v\n", err)
		os.Exit(1)
	}
}
