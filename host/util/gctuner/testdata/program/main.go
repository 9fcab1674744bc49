// Command program goes on after its pages are released.
package main

import (
	"fmt"
	"os"

	"github.com/sluice-proxy/sluice/host/util/gctuner"
)

func main() {
	gctuner.ReleaseProgram()
	fmt.Fprintln(os.Stdout, "works")
}
