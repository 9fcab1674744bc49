// Command goguest is a plugin for tests. It keeps all weights; each port above 60000 triggers a kind of misbehavior.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/sdk"
)

type guest struct{ factor int64 }

func (g *guest) Configure(settings []byte) error {
	return sdk.ParseSettings(settings, func(f *sdk.Fields) { f.Int("Factor", &g.factor, 0, 1000) })
}

func (g *guest) Needs() sdk.Need { return sdk.NeedNodes }

func deep(n int) int {
	if n == 0 {
		return 0
	}
	return deep(n-1) + 1
}

func (g *guest) Decide(req *sdk.Request, resp *sdk.Response) error {
	switch req.PortNumber() {
	case 60001:
		panic("on purpose")
	case 60002:
		os.Exit(7)
	case 60003:
		time.Sleep(time.Hour)
	case 60004:
		var all [][]byte
		for {
			all = append(all, make([]byte, 1<<20))
		}
	case 60005:
		return fmt.Errorf("depth %d", deep(1<<30))
	case 60006:
		<-make(chan int)
	case 60007:
		return errors.New("refused on purpose")
	case 60008:
		for i := range 1000 {
			fmt.Println("line", i)
		}
	case 60009:
		var m map[string]int
		m["x"] = 1
	case 60010:
		panic(fmt.Errorf("an error %d", 10))
	}
	return nil
}

func init() { sdk.Register(func() sdk.Plugin { return &guest{factor: 1} }) }

func main() {}
