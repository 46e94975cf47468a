// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/way_out.h"

#include <cerrno>

namespace fmmformer {

std::string_view way_out(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space there, or use another disk";
    case EFBIG:
      return "; raise the limit on file sizes (ulimit -f), or use another disk";
    case EROFS:
    case EACCES:
    case EPERM:
      return "; use a folder that you may write to";
    case ENOTDIR:
    case EEXIST:
      return "; a file is in the way: use another name, or remove it";
    case EISDIR:
      return "; give the path of a file, not of a folder";
    default:
      return "";
  }
}

}  // namespace fmmformer
