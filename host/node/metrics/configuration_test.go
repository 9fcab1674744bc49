package metrics_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// inForce has a plugin of which a previous revision is in force, and one that is not loaded.
var inForce = metrics.Configuration{
	Hash: "0123456789ab", Successful: true, SucceededAt: time.Unix(1000, 0),
	Plugins:  []metrics.PluginInForce{{Plugin: "a", Digest: "sha256:aa"}, {Plugin: "b", Digest: "sha256:bb", LoadFailed: true}, {Plugin: "c", LoadFailed: true}},
	Objects:  map[metrics.ObjectProblem]int{{"ServicePolicy", "Invalid"}: 2, {"ServicePlugin", "Invalid"}: 0},
	Policies: []metrics.PolicyInForce{{"p", "ba9876543210"}, {"p", "ba9876543211"}, {"q", ""}},
}

func TestWhatIsInForceIsExported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.configuration = inForce
		r.start()
		r.want("in force", map[string]float64{
			"sluice_config_info{hash=0123456789ab}":               1,
			"sluice_config_last_reload_successful":                1,
			"sluice_config_last_reload_success_timestamp_seconds": 1000,
			"sluice_plugin_info{digest=sha256:aa,plugin=a}":       1,
			"sluice_plugin_info{digest=sha256:bb,plugin=b}":       1,
			"sluice_plugin_load_failed{plugin=a}":                 0,
			"sluice_plugin_load_failed{plugin=b}":                 1,
			"sluice_plugin_load_failed{plugin=c}":                 1,
			"sluice_policy_info{policy=p,revision=ba9876543210}":  1,
			"sluice_policy_info{policy=p,revision=ba9876543211}":  1,
			"sluice_policy_info{policy=q,revision=}":              -1,

			"sluice_objects_not_in_force{kind=ServicePolicy,reason=Invalid}": 2,
			"sluice_objects_not_in_force{kind=ServicePlugin,reason=Invalid}": 0,
		})
		r.configuration.Successful, r.configuration.Hash = false, "other"
		r.want("rejected", map[string]float64{"sluice_config_last_reload_successful": 0, "sluice_config_info{hash=other}": 1, "sluice_config_info{hash=0123456789ab}": -1})
	})
}
