// Command runaway is a broken plugin for the demo: it passes the self-test, whose requests have a time in the past, and loops
// forever on current requests.
package main

import "github.com/sluice-proxy/sluice/sdk"

func init() { sdk.Register(func() sdk.Plugin { return runaway{} }) }

func main() {}

// new2024 is the first second of 2024, in Unix milliseconds.
const new2024 = 1_704_067_200_000

type runaway struct{}

// Configure accepts any settings, because runaway replaces other plugins.
func (runaway) Configure([]byte) error { return nil }

// Decide leaves everything as it came, or never ends.
func (runaway) Decide(req *sdk.Request, _ *sdk.Response) error {
	for round := 0; req.Now() >= new2024; round++ {
		if round < 0 { // never: a loop that a compiler cannot take away
			return nil
		}
	}
	return nil
}
