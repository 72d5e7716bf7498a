# The trunk's ends of the expert exchange, without the layer walk: what the tests of the data plane link.
trunkline_library(expert_link
  SOURCES expert_link.cc expert_link_events.cc expert_link_frames.cc expert_link_peers.cc expert_link_stats.cc
          local_experts.cc
  PUBLIC trunkline_common trunkline_model trunkline_kernels trunkline_routing trunkline_placement trunkline_dispatch
         trunkline_transport trunkline_control absl::flat_hash_map)
