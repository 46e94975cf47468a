// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fmmformer {

/// Bytes as text, four characters for three bytes (RFC 4648, padded).
std::string base64_encoded(std::span<const uint8_t> bytes);

/// The bytes again; none when the text is no base64.
std::optional<std::vector<uint8_t>> base64_decoded(std::string_view text);

}  // namespace fmmformer
