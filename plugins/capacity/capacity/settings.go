package capacity

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	From    string
	Default float64
}

func (s *settings) fields(f *sdk.Fields) {
	f.String("from", &s.From)
	f.Float("default", &s.Default, 0.001, 1000000)
}

func defaults() settings {
	return settings{From: sdk.PodAnnotation("sluice.dev/capacity"), Default: 1}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	if keys, err := abi.ParseKeys(s.From); err != nil || len(keys) != 1 || !abi.IsEndpointKey(s.From) {
		return errors.New("from: " + strconv.Quote(s.From) + " is none of label:KEY, annotation:KEY, " + sdk.PodCPU + " and node-label:KEY")
	}
	p.settings = s
	milli := uint64(math.Round(s.Default * 1000))
	p.absent = value{milli: milli, text: "capacity " + format(milli) + " by default"}
	p.values = map[sdk.StringID]*value{}
	return nil
}

// maxMilli is the largest capacity, in thousandths: products with capacities fit 64 bits.
const maxMilli = 1_000_000_000

// parse parses a capacity: a decimal number with at most three digits after the point, or, for the CPU, thousandths of a core. It
// returns thousandths.
func parse(from, text string) (milli uint64, ok bool) {
	whole, fraction, point := strings.Cut(text, ".")
	if from == sdk.PodCPU {
		whole, fraction, point = "0", text, false
		if len(text) > 3 {
			whole, fraction = text[:len(text)-3], text[len(text)-3:]
		}
		fraction = strings.Repeat("0", 3-min(3, len(fraction))) + fraction
		if text == "" {
			return 0, false
		}
	}
	if whole == "" || len(whole) > 7 || len(fraction) > 3 || point && fraction == "" {
		return 0, false
	}
	for _, c := range []byte(whole + (fraction + "000")[:3]) {
		if c < '0' || c > '9' {
			return 0, false
		}
		milli = milli*10 + uint64(c-'0')
	}
	return milli, milli <= maxMilli
}
