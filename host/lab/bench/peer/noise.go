package peer

import (
	"math"

	"github.com/sluice-proxy/sluice/host/util/stats"
)

// verdict classifies a ratio. It is a difference only if its interval excludes 1 and the ratio is further from 1 than the
// interval of the noise.
func verdict(got, noise stats.Interval, moreIsBetter bool) string {
	most := math.Max(math.Abs(math.Log(noise.Low)), math.Abs(math.Log(noise.High)))
	better, worse := got.Low > 1 && math.Log(got.Median) > most, got.High < 1 && -math.Log(got.Median) > most
	if !moreIsBetter {
		better, worse = worse, better
	}
	switch {
	case better:
		return "better"
	case worse:
		return "worse"
	}
	return "no difference beyond noise"
}
